// Fleet: every pod by model and state, the worst first, and what to do about it.

import { html, nothing } from "./vendor/lit-html/lit-html.js";
import { bytes, count, counted, seconds, share, tokens, words } from "./format.js";
import { STATES, ago, asked, bar, cards, chooser, dim, empty, filters, finder, head, isFound, line, long, more, name, portion, rank, state, sum } from "./parts.js";
import { keyOf, live, redraw } from "./stream.js";

export const topics = ["pods"];

const ORDER = Object.keys(STATES);
const PORTION = 50;
const open = new Set();

const byName = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

export function view() {
  const all = [...live.pods.values()];
  if (!all.length) {
    return empty(
      "No pods are registered.",
      "List them in fleet.toml under [[pods]] and start the server with --config fleet.toml,",
      "or register one while it runs: PUT /v1/pods/NAME with its model and endpoint.",
      "To look around without engines, run kvbraid demo --serve.",
    );
  }
  const wanted = asked("state");
  const found = all.filter((row) => (!wanted || row.state === wanted) && isFound(row.pod, row.model));
  found.sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || byName(a.pod, b.pod) || a.dp_rank - b.dp_rank);
  return html`
    ${summary(all)}
    ${filters(finder("pod or model"), chooser("State", "state", [["", "all"], ...ORDER]))}
    ${found.length ? models(portion(found, PORTION), all) : empty("No pod matches.", "Clear the filter to see all of them.")}
    ${more(found, PORTION)}`;
}

function summary(all) {
  const inState = (name) => sum(all, (row) => row.state === name);
  return cards(
    ["Ranks", count(all.length), counted(new Set(all.map((row) => row.model)).size, "model")],
    ...ORDER.filter((name) => name === "exact" || inState(name)).map((name) => [state(name), count(inState(name)), share(inState(name), all.length)]),
    ["In flight", counted(sum(all, (row) => row.running), "request"), `${count(sum(all, (row) => row.waiting))} without a first token`],
    ["Blocks known", count(sum(all, (row) => row.num_blocks)), "of all groups"],
    ["Memory of the index", bytes(live.memoryBytes), "on this server"],
  );
}

const NUMBER = "number";
const ofEngine = (load, key) => (load ? dim(` engine ${count(load[key])}`) : nothing);

const COLUMNS = [
  ["Pod", (row) => html`<button type="button" class="plain" data-key=${keyOf(row)} aria-expanded=${open.has(keyOf(row))} @click=${() => toggle(keyOf(row))}>${rank(row)}</button>${row.drain ? html` <span class="tag">draining</span>` : nothing}`],
  ["State", (row) => html`${state(row.state)}${row.state !== "exact" && row.reason ? html`<span class="why">${name(row.reason, 120)}</span>` : nothing}`],
  ["Since", (row) => ago(row.state_s)],
  ["Running", (row) => html`${count(row.running)}${row.max_running ? dim(` of ${count(row.max_running)}`) : nothing}${ofEngine(row.engine_load, "running")}`, NUMBER],
  ["Waiting", (row) => html`${count(row.waiting)}${ofEngine(row.engine_load, "waiting")}`, NUMBER],
  ["Pool in use", ({ engine_load: load }) => load ? html`${bar([["held", load.usage, "in use"]], 1, `pool in use: ${share(load.usage, 1)}`)}${dim(share(load.usage, 1))}` : html`<span class="dim" title="Only kvbraid route reads engines' metrics">not asked</span>`],
  ["Blocks", (row) => count(row.num_blocks), NUMBER],
  ["Index memory", (row) => bytes(row.memory_bytes), NUMBER],
  ["Last events", (row) => html`${ago(row.applied_s)}${row.last_seq === null ? nothing : dim(` batch ${count(row.last_seq)}`)}`],
  ["Event lag", (row) => row.lag_s === null ? dim("–") : seconds(row.lag_s), NUMBER],
  ["Placed", ({ placed: { unplaced, ...means } }) => {
    const placed = sum(Object.values(means), (n) => n);
    return share(placed, placed + unplaced);
  }, NUMBER],
  ["Refused", (row) => count(sum(Object.values(row.refused), (n) => n)), NUMBER],
];

function toggle(key) {
  if (!open.delete(key)) open.add(key);
  redraw();
}

function models(rows, all) {
  const groups = [...Map.groupBy(rows, (row) => row.model)].sort(([a], [b]) => byName(a, b));
  return html`<div class="scroll"><table class="stack lines">
      ${head(COLUMNS)}
      ${groups.map(([model, rows]) => {
        const whole = sum(all, (row) => row.model === model);
        return html`<tbody>
          <tr class="model"><th colspan=${COLUMNS.length} scope="rowgroup">${name(model)} ${dim(rows.length < whole ? `${count(rows.length)} of ` : "", counted(whole, "rank"))}</th></tr>
          ${rows.map((row) => [line(COLUMNS, row), open.has(keyOf(row)) ? details(row) : nothing])}
        </tbody>`;
      })}
    </table></div>`;
}

const fact = (label, value) => html`<div><dt>${label}</dt><dd>${value}</dd></div>`;

function counts(numbers, none) {
  const some = Object.entries(numbers).filter(([, n]) => n);
  return some.length ? html`<ul class="inline">${some.map(([what, n]) => html`<li>${name(words(what))} <b>${count(n)}</b></li>`)}</ul>` : none;
}

const missed = (row) => row.replay_endpoint ? html`, missed ones from ${name(row.replay_endpoint)}` : ", and missed ones are lost: it has no replay_endpoint";

const details = (row) => html`<tr class="details"><td colspan=${COLUMNS.length}><dl class="facts">
    ${row.reason ? fact("Reason", long(row.reason)) : nothing}
    ${row.remedy ? fact("What to do", long(row.remedy)) : nothing}
    ${fact("Last warning", row.problem ? html`${long(row.problem.text)} ${dim(words(row.problem.event), ", ", ago(row.problem.at_s))}` : "none")}
    ${fact("Events from", row.endpoint ? html`${name(row.endpoint)}${missed(row)}` : "nowhere")}
    ${fact("Requests to", row.url ? name(row.url) : "no url is registered")}
    ${fact("Hashes placed by", counts(row.placed, "none yet"))}
    ${fact("Refused and noted", counts(row.refused, "nothing"))}
    ${fact(html`Blocks held by group, ${ago(row.applied_s)}`, row.groups.length ? html`<ul>${row.groups.map((it) => group(it, row))}</ul>${row.num_gpu_blocks && row.block_bytes ? nothing : dim("Give its num_gpu_blocks and block_bytes in fleet.toml for shares and bytes.")}` : "not known until the first event")}
  </dl></td></tr>`;

const listed = (...facts) => facts.filter(Boolean).join(", ");

const group = (it, row) => html`<li>${it.group === null ? "without a number" : `group ${it.group}`}: ${listed(words(it.kind), `blocks of ${tokens(it.block_size)}`, it.window && `window of ${tokens(it.window)}`, it.chunk && `chunks of ${tokens(it.chunk)}`, it.eagle && "EAGLE")}: <b>${heldOf(it.held, row)}</b></li>`;

const heldOf = ({ gpu, ...others }, { num_gpu_blocks: pool, block_bytes: size }) =>
  listed(`${count(gpu)} on GPU`, pool && `${share(gpu, pool)} of its pool`, size && bytes(gpu * size), ...Object.entries(others).map(([tier, n]) => n && `${count(n)} on ${tier.toUpperCase()}`));
