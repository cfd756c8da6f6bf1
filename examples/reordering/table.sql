-- Load balancing by what it costs TCP: means over the repeats, and half of their 95 % intervals (t);
-- the change of the mean slowdown against ecmp is of pairs of the same flows.
-- closloop sql runs/reordering-linux runs/reordering-ns3 - < examples/reordering/table.sql
with known as (
  select run, trial, repeat, coalesce(to_json(cell)->>'detection', 'ns-3') as tcp,
    cell.balance as balance
  from trials where valid
),
slowdowns as (
  select run, trial, avg(fct_ns / ideal_ns) as mean, quantile_cont(fct_ns / ideal_ns, 0.99) as p99
  from flows where status = 'done' group by all
),
counters as (
  select run, trial, host, max(received_packets) as received, max(out_of_order_packets) as early,
    max(retransmits) as resent
  from hosts group by all
),
packets as (
  select run, trial, 100 * sum(early) / sum(received) as early,
    100 * sum(resent) / sum(received) as resent
  from counters group by all
),
queues as (
  select run, trial, device, port, queue, max(dropped_packets) as dropped from ports group by all
),
drops as (select run, trial, sum(dropped) as dropped from queues group by all),
seen as (
  select tcp, balance, repeat, mean, p99, packets.early, packets.resent, dropped,
    100 * (mean / max(mean) filter (where balance = 'ecmp') over (
      partition by tcp, repeat) - 1) as change
  from known join slowdowns using (run, trial) join packets using (run, trial)
    join drops using (run, trial)
),
t as (select [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262] as quantile)
select tcp, balance, count(*) as repeats,
  round(avg(mean), 2) as mean_slowdown,
  round(avg(change), 1) as "change %",
  round(any_value(quantile)[count(*) - 1] * stddev_samp(change) / sqrt(count(*)), 1) as "±",
  round(avg(p99), 1) as p99_slowdown,
  round(any_value(quantile)[count(*) - 1] * stddev_samp(p99) / sqrt(count(*)), 1) as "± ",
  round(avg(early), 2) as "% out of order",
  round(avg(resent), 3) as "% resent",
  sum(dropped) as dropped
from seen, t
group by tcp, balance
order by tcp, min(early), balance
