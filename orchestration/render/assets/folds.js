"use strict";
// Opens all folds for a printer, and those around the part that an address names.
const closed = [];
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details:not([open])")) {
    fold.open = true;
    closed.push(fold);
  }
});
addEventListener("afterprint", () => {
  for (const fold of closed.splice(0)) fold.open = false;
});

function openAround() {
  let part = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!part) return;
  for (let at = part; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  part.scrollIntoView();
}
addEventListener("hashchange", openAround);
openAround();
