// Ladder: how many tokens of the prompts were reused over time, and why it was not more.

import { html, nothing } from "./vendor/lit-html/lit-html.js";
import { count, counted, isLoss, seconds, share, tokens, words } from "./format.js";
import { ask, asked, bar, card, chooser, empty, name } from "./parts.js";

export const topics = ["ladder"];

// From what was won to what was lost, in the order in which they are stacked; docs/ladder.md has all.
const REASONS = [
  "end_of_prompt", "state_missing", "evicted", "other_pod_for_load", "event_lag", "left_out",
  "engine_recomputed", "tokens_differ", "uncertain", "not_reported", "unknown", "forgotten", "never_seen",
];
const COLOURS = 14; // Of style.css: --series-0 is what was delivered.
const SPANS = [["10", "10 minutes"], ["30", "30 minutes"], ["60", "1 hour"]];

let chart = null;
let drawnFor = "";

export function view(live, redraw) {
  if (!live.models.length) {
    return empty(
      "No request has ended yet.",
      "Requests that are picked count here once their end is reported: by kvbraid route and pick-serve themselves, or by POST /v1/picked.",
    );
  }
  const model = asked("model");
  const minutes = Number(asked("minutes") || 10);
  const rows = chosen(live, model, minutes);
  const all = totals(rows);
  const worst = all.gaps.find(([reason]) => isLoss({ reason }));
  return html`
    <form class="filters" @submit=${(event) => event.preventDefault()}>
      ${chooser("Model", model, [["", "all models"], ...live.models.map((row) => [row.model, row.model.slice(0, 60)])], (value) => { ask("model", value); redraw(); })}
      ${chooser("Of the last", String(minutes), SPANS, (value) => { ask("minutes", value); redraw(); })}
    </form>
    <dl class="cards">
      ${card("Ended", counted(all.ended, "request"), `${count(all.reported)} of them reported`)}
      ${card("Prompts", tokens(all.prompt), `in the last ${minutes} minutes`)}
      ${card("Reused", share(all.delivered, all.prompt), tokens(all.delivered))}
      ${worst ? card("Lost most to", words(worst[0]), tokens(worst[1])) : card("Lost", "nothing", "that was there before")}
    </dl>
    <section>
      <h2>Tokens of prompts, each ${seconds(live.intervalS)}</h2>
      ${rows.length ? nothing : empty(`No request has ended in the last ${minutes} minutes.`, "Choose a longer time.")}
      <div id="chart" class="chart" role="img" aria-label="Tokens of prompts over time, by what became of them; the table has the same sums" ?hidden=${!rows.length}></div>
    </section>
    <section>
      <h2>What became of them</h2>
      <div class="scroll"><table>
        <thead><tr><th scope="col">What</th><th scope="col" class="where">Where it was lost</th><th scope="col" class="number">Tokens</th><th scope="col" class="number">Share</th><th scope="col" class="wide">Of all prompts</th></tr></thead>
        <tbody>
          ${part("delivered", 0, "reused by the engines", "", all.delivered, all.prompt)}
          ${all.gaps.map(([reason, n, gaps]) => part(reason, REASONS.indexOf(reason) + 1, words(reason), gaps, n, all.prompt))}
        </tbody>
      </table></div>
      <p class="dim">Each reason, how sure it is and what helps: docs/ladder.md. ${all.above ? `Engines reused ${tokens(all.above)} more than was expected of their pods.` : ""}</p>
    </section>
    <section>
      <h2>Since the server's start</h2>
      <div class="scroll"><table class="stack">
        <thead><tr><th scope="col">Model</th><th scope="col" class="number">Requests</th>${Object.values(RUNGS).map((title) => html`<th scope="col" class="number">${title}, tokens</th>`)}</tr></thead>
        <tbody>${live.models.map((row) => html`<tr><th scope="row">${name(row.model)}</th><td data-label="Requests" class="number">${count(row.ended)}</td>${Object.entries(RUNGS).map(([rung, title]) => html`<td data-label=${`${title}, tokens`} class="number">${row.rungs[rung] === null ? "–" : count(row.rungs[rung])}</td>`)}</tr>`)}</tbody>
      </table></div>
    </section>`;
}

const RUNGS = { prompt: "Prompts", seen: "Seen", best: "Best pod", chosen: "Chosen pod", delivered: "Delivered" };
const WHERE = { seen: "never there", best: "on every pod", chosen: "by the choice", delivered: "in the engine" };

const part = (key, colour, what, where, n, whole) => html`<tr><th scope="row"><svg class="key" aria-hidden="true"><rect width="100%" height="100%" fill=${`var(--series-${colour})`}></rect></svg>${what}</th><td class="where">${where}</td><td class="number">${count(n)}</td><td class="number">${share(n, whole)}</td><td class="wide">${bar([["", n, what, `var(--series-${colour})`]], whole, "")}</td></tr>`;

function chosen(live, model, minutes) {
  const first = live.now() - 60 * minutes - live.intervalS;
  return [...live.intervals.values()].filter((row) => row.begin_s >= first && (!model || row.model === model));
}

function totals(rows) {
  const sum = (of) => rows.reduce((total, row) => total + of(row), 0);
  const lost = new Map();
  let above = 0;
  for (const row of rows) {
    for (const gap of row.gaps) {
      if (gap.gap === "above") {
        above += gap.tokens;
        continue;
      }
      const [n, gaps] = lost.get(gap.reason) ?? [0, new Set()];
      lost.set(gap.reason, [n + gap.tokens, gaps.add(WHERE[gap.gap])]);
    }
  }
  const gaps = [...lost].map(([reason, [n, where]]) => [reason, n, [...where].join(", ")]).sort((a, b) => b[1] - a[1]);
  return { ended: sum((row) => row.ended), reported: sum((row) => row.reported), prompt: sum((row) => row.prompt), delivered: sum((row) => row.delivered), gaps, above };
}

// Columns for uPlot: times in seconds before now, then the series, each on top of the ones below it.
function columns(live, rows, minutes) {
  const step = live.intervalS;
  const last = Math.floor(live.now() / step) * step;
  const num = Math.round((60 * minutes) / step);
  const first = last - (num - 1) * step;
  const series = Array.from({ length: COLOURS }, () => new Array(num).fill(0));
  for (const row of rows) {
    const at = Math.round((row.begin_s - first) / step);
    if (at < 0 || at >= num) continue;
    series[0][at] += row.delivered;
    for (const gap of row.gaps) if (gap.gap !== "above") series[REASONS.indexOf(gap.reason) + 1][at] += gap.tokens;
  }
  for (const column of series) column.push(column[num - 1]); // The end of the last interval.
  for (let above = 1; above < COLOURS; above++) series[above] = series[above].map((n, at) => n + series[above - 1][at]);
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
    series: [{}, ...Array.from({ length: COLOURS }, (_, at) => COLOURS - 1 - at).map((at) => ({ fill: colour(`--series-${at}`), width: 0, points: { show: false }, paths: stepped }))],
  };
}

let loading = null;
const load = () => (loading ??= new Promise((resolve, reject) => {
  document.head.append(Object.assign(document.createElement("script"), { src: "/console/vendor/uplot/uPlot.iife.min.js", onload: resolve, onerror: reject }));
}));

export async function drawn(live) {
  const place = document.getElementById("chart");
  if (!place || place.hidden) return;
  await load();
  const [model, minutes] = [asked("model"), Number(asked("minutes") || 10)];
  const [times, ...series] = columns(live, chosen(live, model, minutes), minutes);
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
