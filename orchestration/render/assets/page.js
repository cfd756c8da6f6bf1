"use strict";
// Draws each picture when it comes near the screen, all of them before printing, and lets the arrow
// keys walk over the points of the picture that has the focus.
const config = { displayModeBar: false, responsive: true, showTips: false };
// A4 less its margins, in CSS pixels.
const PAPER_WIDTH = 690;
// plotly.js shows at most one label in 50 ms, and says nothing when it was not a mouse that asked.
const LABEL_MS = 70;
const pictures = [...document.querySelectorAll(".picture")];
const told = document.getElementById("told");

function draw(place) {
  if (place.dataset.drawn) return;
  place.dataset.drawn = "yes";
  const { data, layout } = JSON.parse(place.nextElementSibling.textContent);
  Plotly.newPlot(place, data, layout, config);
}

// Says aloud what the arrow keys point at; a mouse's reader sees it.
function tell(place) {
  if (!place.cursor) return;
  told.textContent = [...place.querySelectorAll(".hovertext")].map((e) => e.textContent).join("; ");
}

const watcher = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      watcher.unobserve(target);
      draw(target);
    }
  },
  { rootMargin: "600px" },
);
for (const place of pictures) {
  watcher.observe(place);
  place.addEventListener("keydown", walk);
  place.addEventListener("focus", () => draw(place));
  place.addEventListener("blur", () => leave(place));
}

addEventListener("beforeprint", () => {
  for (const place of pictures) {
    draw(place);
    Plotly.relayout(place, { autosize: false, width: PAPER_WIDTH });
  }
});
addEventListener("afterprint", () => {
  for (const place of pictures) Plotly.relayout(place, { autosize: true, width: null });
});

// The points that can be pointed at, line by line, as Plotly.Fx.hover takes them.
function lines(place) {
  return place.calcdata.flatMap((points, curveNumber) => {
    const { trace, z, xCenter, yCenter } = points[0];
    if (!trace.hovertemplate) return [];
    if (!z) return [points.map((_, pointNumber) => ({ curveNumber, pointNumber }))];
    return yCenter.map((yval) => Array.from(xCenter, (xval) => ({ curveNumber, xval, yval })));
  });
}

function walk(event) {
  const steps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
  const place = event.currentTarget;
  if (event.key === "Escape") return leave(place);
  if (!(event.key in steps) || event.altKey || event.ctrlKey || event.metaKey) return;
  const known = lines(place).filter((points) => points.length);
  if (!known.length) return;
  event.preventDefault();
  const [down, right] = steps[event.key];
  const old = place.cursor;
  const at = old ? { line: old.line + down, point: old.point + right } : { line: 0, point: 0 };
  at.line = (at.line + known.length) % known.length;
  const points = known[at.line];
  at.point = Math.min(Math.max(at.point, 0), points.length - 1);
  place.cursor = at;
  const point = points[at.point];
  const { xaxis, yaxis } = place.calcdata[point.curveNumber][0].trace;
  Plotly.Fx.hover(place, [point], xaxis + yaxis);
  setTimeout(() => tell(place), LABEL_MS);
}

function leave(place) {
  if (!place.cursor) return;
  delete place.cursor;
  Plotly.Fx.unhover(place);
  told.textContent = "";
}
