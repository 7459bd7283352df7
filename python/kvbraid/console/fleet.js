// Fleet: every pod by model and state, the worst first, and what to do about it.

import { html, nothing } from "./vendor/lit-html/lit-html.js";
import { repeat } from "./vendor/lit-html/directives/repeat.js";
import { bytes, count, counted, share, words } from "./format.js";
import { STATES, ago, ask, asked, bar, card, chooser, empty, name, rank, state } from "./parts.js";

export const topics = ["pods"];

const ORDER = Object.keys(STATES);
const PORTION = 100; // Rows that are drawn until more are asked for.
let most = PORTION;
const open = new Set();

const sum = (rows, of) => rows.reduce((total, row) => total + of(row), 0);
const numRefused = (row) => sum(Object.values(row.refused), (n) => n);
const keyOf = (row) => `${row.dp_rank} ${row.pod}`;

export function view(live, redraw) {
  const all = [...live.pods.values()];
  if (!all.length) {
    return empty(
      "No pods are registered.",
      "List them in fleet.toml under [[pods]] and start the server with --config fleet.toml,",
      "or register one while it runs: PUT /v1/pods/NAME with its model and endpoint.",
      "To look around without engines, run kvbraid demo --serve.",
    );
  }
  const text = asked("find").toLowerCase();
  const wanted = asked("state");
  const found = all.filter((row) =>
    (!wanted || row.state === wanted) &&
    (!text || `${row.pod} ${row.model}`.toLowerCase().includes(text)));
  found.sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || (a.pod < b.pod ? -1 : a.pod > b.pod ? 1 : a.dp_rank - b.dp_rank));
  const shown = found.slice(0, most);
  return html`
    ${summary(live, all)}
    ${filters(wanted, redraw)}
    ${found.length ? nothing : empty("No pod matches.", "Clear the filter to see all of them.")}
    ${found.length ? table(live, group(shown), all, redraw) : nothing}
    ${found.length > shown.length ? html`<p><button type="button" @click=${() => { most += PORTION; redraw(); }}>Show ${Math.min(PORTION, found.length - shown.length)} more of ${counted(found.length, "rank")}</button></p>` : nothing}`;
}

function group(rows) {
  const models = new Map();
  for (const row of rows) models.set(row.model, [...(models.get(row.model) ?? []), row]);
  return models;
}

function summary(live, all) {
  const inState = (name) => all.filter((row) => row.state === name).length;
  const running = sum(all, (row) => row.running);
  const waiting = sum(all, (row) => row.waiting);
  return html`<dl class="cards">
    ${card("Ranks", count(all.length), counted(new Set(all.map((row) => row.model)).size, "model"))}
    ${ORDER.filter((name) => name === "exact" || inState(name)).map((name) => card(html`${state(name)}`, count(inState(name)), share(inState(name), all.length)))}
    ${card("In flight", counted(running, "request"), `${count(waiting)} without a first token`)}
    ${card("Blocks known", count(sum(all, (row) => row.num_blocks)), "of all groups")}
    ${card("Memory of the index", bytes(live.memoryBytes), "on this server")}
  </dl>`;
}

const filters = (wanted, redraw) => html`<form class="filters" role="search" @submit=${(event) => event.preventDefault()}>
  <label>Find <input type="search" name="find" placeholder="pod or model" .value=${asked("find")} @input=${(event) => { ask("find", event.target.value); redraw(); }}></label>
  ${chooser("State", wanted, [["", "all"], ...ORDER.map((name) => [name, name])], (value) => { ask("state", value); redraw(); })}
</form>`;

function table(live, models, all, redraw) {
  const sorted = [...models].sort(([a], [b]) => (a < b ? -1 : 1));
  return html`<div class="scroll"><table class="stack lines">
      <thead><tr><th scope="col">Pod</th><th scope="col">State</th><th scope="col">Since</th><th scope="col" class="number">Running</th><th scope="col" class="number">Waiting</th><th scope="col">Pool in use</th><th scope="col" class="number">Blocks</th><th scope="col" class="number">Index memory</th><th scope="col">Last events</th><th scope="col" class="number">Placed</th><th scope="col" class="number">Refused</th></tr></thead>
      ${repeat(sorted, ([model]) => model, ([model, rows]) => {
        const whole = all.filter((row) => row.model === model).length;
        return html`<tbody>
          <tr class="model"><th colspan="11" scope="rowgroup">${name(model)} <span class="dim">${rows.length < whole ? `${count(rows.length)} of ${counted(whole, "rank")}` : counted(whole, "rank")}</span></th></tr>
          ${repeat(rows, keyOf, (row) => [line(live, row, redraw), open.has(keyOf(row)) ? details(live, row) : nothing])}
        </tbody>`;
      })}
    </table></div>`;
}

function line(live, row, redraw) {
  const isOpen = open.has(keyOf(row));
  const toggle = () => { isOpen ? open.delete(keyOf(row)) : open.add(keyOf(row)); redraw(); };
  const { unplaced, ...means } = row.placed;
  const placed = sum(Object.values(means), (n) => n);
  const load = row.engine_load;
  return html`<tr>
    <th scope="row"><button type="button" class="plain" aria-expanded=${isOpen ? "true" : "false"} @click=${toggle}>${rank(row)}</button>${row.drain ? html` <span class="tag">draining</span>` : nothing}</th>
    <td data-label="State">${state(row.state)}${row.state !== "exact" && row.reason ? html`<span class="why">${name(row.reason, 120)}</span>` : nothing}</td>
    <td data-label="Since">${ago(live, row.state_s)}</td>
    <td data-label="Running" class="number">${count(row.running)}${row.max_running ? html`<span class="dim"> of ${count(row.max_running)}</span>` : nothing}${load ? html`<span class="dim"> engine ${count(load.running)}</span>` : nothing}</td>
    <td data-label="Waiting" class="number">${count(row.waiting)}${load ? html`<span class="dim"> engine ${count(load.waiting)}</span>` : nothing}</td>
    <td data-label="Pool in use">${load ? html`${bar([["held", load.usage, "in use"]], 1, `pool in use: ${share(load.usage, 1)}`)}<span class="dim">${share(load.usage, 1)}</span>` : html`<span class="dim" title="Only kvbraid route reads engines' metrics">not asked</span>`}</td>
    <td data-label="Blocks" class="number">${count(row.num_blocks)}</td>
    <td data-label="Index memory" class="number">${bytes(row.memory_bytes)}</td>
    <td data-label="Last events">${ago(live, row.applied_s)}${row.last_seq === null ? nothing : html`<span class="dim"> batch ${count(row.last_seq)}</span>`}</td>
    <td data-label="Placed" class="number">${share(placed, placed + unplaced)}</td>
    <td data-label="Refused" class="number">${count(numRefused(row))}</td>
  </tr>`;
}

const fact = (label, value) => html`<div><dt>${label}</dt><dd>${value}</dd></div>`;
const counts = (numbers, none) => {
  const some = Object.entries(numbers).filter(([, n]) => n);
  return some.length ? html`<ul class="inline">${some.map(([what, n]) => html`<li>${name(words(what))} <b>${count(n)}</b></li>`)}</ul>` : none;
};

function details(live, row) {
  return html`<tr class="details"><td colspan="11"><dl class="facts">
    ${row.reason ? fact("Reason", name(row.reason, 1000)) : nothing}
    ${row.remedy ? fact("What to do", name(row.remedy, 1000)) : nothing}
    ${fact("Last warning", row.problem ? html`${name(row.problem.text, 1000)} <span class="dim">${words(row.problem.event)}, ${ago(live, row.problem.at_s)}</span>` : "none")}
    ${fact("Events from", row.endpoint ? html`${name(row.endpoint)}${row.replay_endpoint ? html`, missed ones from ${name(row.replay_endpoint)}` : ", and missed ones are lost: it has no replay_endpoint"}` : "nowhere")}
    ${fact("Requests to", row.url ? name(row.url) : "no url is registered")}
    ${fact("Batches applied", count(row.messages))}
    ${fact("Hashes placed by", counts(row.placed, "none yet"))}
    ${fact("Refused and noted", counts(row.refused, "nothing"))}
    ${fact("Groups, and their blocks held", row.groups.length ? html`<ul>${row.groups.map(groupLine)}</ul>` : "not known until the first event")}
  </dl></td></tr>`;
}

const groupLine = (group) => html`<li>${group.group === null ? "without a number" : `group ${group.group}`}: ${words(group.kind)}, blocks of ${counted(group.block_size, "token")}${group.window ? `, window of ${counted(group.window, "token")}` : ""}${group.chunk ? `, chunks of ${counted(group.chunk, "token")}` : ""}${group.eagle ? ", EAGLE" : ""}: ${heldOf(group)}</li>`;

function heldOf({ held }) {
  const some = Object.entries(held).filter(([tier, n]) => n || tier === "gpu");
  return html`<b>${some.map(([tier, n]) => `${count(n)} on ${tier.toUpperCase()}`).join(", ")}</b>`;
}
