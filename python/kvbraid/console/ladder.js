// Ladder: how many tokens of the prompts were reused over time, and why it was not more.

import { html } from "./vendor/lit-html/lit-html.js";
import { RUNGS, count, counted, isLoss, seconds, share, tokens, words } from "./format.js";
import { asked, bar, cards, chooser, empty, filters, name, sum, table } from "./parts.js";
import { live, now } from "./stream.js";

export const topics = ["ladder"];

// From what was won to what was lost, in the order in which they are stacked; docs/ladder.md has all.
const REASONS = [
  "end_of_prompt", "state_missing", "evicted", "other_pod_for_load", "event_lag", "left_out",
  "engine_recomputed", "tokens_differ", "uncertain", "not_reported", "unknown", "forgotten", "never_seen",
];
// Of what was reused, and of each reason, on light ground and on dark.
const COLOURS = [
  "#3a9360", "#93b884", "#3f7fe8", "#d2503f", "#d99a2b", "#8566cc", "#c26aa8",
  "#9a6a48", "#2ba0a6", "#8e99a8", "#707b8a", "#b3a14a", "#8c9cc6", "#a7b0bd",
];
const SPANS = [["10", "10 minutes"], ["30", "30 minutes"], ["60", "1 hour"]];

let chart = null;
let drawnFor = "";

const minutes = () => Number(asked("minutes") || 10);

export function view() {
  if (!live.models.length) {
    return empty(
      "No request has ended yet.",
      "Requests that are picked count here once their end is reported: by kvbraid route and pick-serve themselves, or by POST /v1/picked.",
    );
  }
  const rows = chosen();
  const all = totals(rows);
  const worst = all.gaps.find(([reason]) => isLoss({ reason }));
  return html`
    ${filters(
      chooser("Model", "model", [["", "all models"], ...live.models.map((row) => [row.model, row.model.slice(0, 60)])]),
      chooser("Of the last", "minutes", SPANS, String(minutes())),
    )}
    ${cards(
      ["Ended", counted(all.ended, "request"), `${count(all.reported)} of them reported`],
      ["Prompts", tokens(all.prompt), `in the last ${minutes()} minutes`],
      ["Reused", share(all.delivered, all.prompt), tokens(all.delivered)],
      worst ? ["Lost most to", words(worst[0]), tokens(worst[1])] : ["Lost", "nothing", "that was there before"],
    )}
    <section>
      <h2>Tokens of prompts, each ${seconds(live.intervalS)}</h2>
      ${rows.length ? "" : empty(`No request has ended in the last ${minutes()} minutes.`, "Choose a longer time.")}
      <div id="chart" class="chart" role="img" aria-label="Tokens of prompts over time, by what became of them; the table has the same sums" ?hidden=${!rows.length}></div>
    </section>
    <section>
      <h2>What became of them</h2>
      ${table(parts(all.prompt), [["reused by the engines", all.delivered, "", 0], ...all.gaps.map(([reason, n, gaps]) => [words(reason), n, gaps, REASONS.indexOf(reason) + 1])], { kind: "" })}
      <p class="dim">Each reason, how sure it is and what helps: docs/ladder.md. ${all.above ? `Engines reused ${tokens(all.above)} more than was expected of their pods.` : ""}</p>
    </section>
    <section>
      <h2>Since the server's start</h2>
      ${table(SINCE_START, live.models)}
    </section>`;
}

const WHERE = { seen: "never there", best: "on every pod", chosen: "by the choice", delivered: "in the engine" };

const SINCE_START = [
  ["Model", (row) => name(row.model)],
  ["Requests", (row) => count(row.ended), "number"],
  ...Object.entries(RUNGS).map(([rung, title]) => [`${title}, tokens`, (row) => (row.rungs[rung] === null ? "–" : count(row.rungs[rung])), "number"]),
];

// Rows are [what, tokens, where, number of its colour].
const parts = (whole) => [
  ["What", ([what, , , colour]) => html`<svg class="key" aria-hidden="true"><rect width="100%" height="100%" fill=${COLOURS[colour]}></rect></svg>${what}`],
  ["Where it was lost", ([, , where]) => where, "where"],
  ["Tokens", ([, n]) => count(n), "number"],
  ["Share", ([, n]) => share(n, whole), "number"],
  ["Of all prompts", ([what, n, , colour]) => bar([["", n, what, COLOURS[colour]]], whole, ""), "wide"],
];

function chosen() {
  const [model, first] = [asked("model"), now() - 60 * minutes() - live.intervalS];
  return [...live.intervals.values()].filter((row) => row.begin_s >= first && (!model || row.model === model));
}

function totals(rows) {
  const lost = new Map();
  let above = 0;
  for (const { gap, reason, tokens } of rows.flatMap((row) => row.gaps)) {
    if (gap === "above") {
      above += tokens;
      continue;
    }
    const [n, gaps] = lost.get(reason) ?? [0, new Set()];
    lost.set(reason, [n + tokens, gaps.add(WHERE[gap])]);
  }
  const gaps = [...lost].map(([reason, [n, where]]) => [reason, n, [...where].join(", ")]).sort((a, b) => b[1] - a[1]);
  const of = (key) => sum(rows, (row) => row[key]);
  return { ended: of("ended"), reported: of("reported"), prompt: of("prompt"), delivered: of("delivered"), gaps, above };
}

// Columns for uPlot: times in seconds before now, then the series, each on top of the ones below it.
function columns(rows) {
  const step = live.intervalS;
  const last = Math.floor(now() / step) * step;
  const num = Math.round((60 * minutes()) / step);
  const first = last - (num - 1) * step;
  const series = COLOURS.map(() => new Array(num).fill(0));
  for (const row of rows) {
    const at = Math.round((row.begin_s - first) / step);
    if (at < 0 || at >= num) continue;
    series[0][at] += row.delivered;
    for (const gap of row.gaps) if (gap.gap !== "above") series[REASONS.indexOf(gap.reason) + 1][at] += gap.tokens;
  }
  for (const column of series) column.push(column[num - 1]); // The end of the last interval.
  for (let above = 1; above < COLOURS.length; above++) series[above] = series[above].map((n, at) => n + series[above - 1][at]);
  return [Array.from({ length: num + 1 }, (_, at) => (at - num) * step), ...series];
}

function options(place) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  const stepped = window.uPlot.paths.stepped({ align: 1 });
  return {
    width: place.clientWidth, height: 250, legend: { show: false }, cursor: { show: false },
    scales: { x: { time: false }, y: { range: (_, __, most) => [0, Math.max(most, 1) * 1.05] } },
    axes: [
      { ...axis, size: 28, values: (_, ticks) => ticks.map((s) => (s === 0 ? "now" : `${count(s / 60)} min`)), incrs: [60, 120, 300, 600] },
      { ...axis, size: 64, values: (_, ticks) => ticks.map((n) => (n >= 1e6 ? `${n / 1e6} M` : n >= 1e3 ? `${n / 1e3} k` : n)) },
    ],
    // The highest is drawn first, so that those below it cover it.
    series: [{}, ...COLOURS.toReversed().map((fill) => ({ fill, width: 0, points: { show: false }, paths: stepped }))],
  };
}

let loading = null;
const load = () => (loading ??= new Promise((resolve, reject) => {
  document.head.append(Object.assign(document.createElement("script"), { src: "/console/vendor/uplot/uPlot.iife.min.js", onload: resolve, onerror: reject }));
}));

export async function drawn() {
  const place = document.getElementById("chart");
  if (!place || place.hidden) return;
  await load();
  const [times, ...series] = columns(chosen());
  const values = [times, ...series.reverse()];
  const key = `${place.clientWidth} ${matchMedia("(prefers-color-scheme: dark)").matches}`;
  if (!chart || key !== drawnFor || chart.root.parentNode !== place) {
    chart?.destroy();
    chart = new window.uPlot(options(place), values, place);
    drawnFor = key;
  } else {
    chart.setData(values);
  }
}
