// What pages share. All text from outside goes through here or through bindings of lit-html, which
// make text nodes: it is never read as HTML.

import { html, nothing, svg } from "./vendor/lit-html/lit-html.js";
import { age, count, counted } from "./format.js";
import { now, redraw } from "./stream.js";

const LONGEST = 80;

// A name from outside: isolated, so that it cannot turn the text around it, and clipped.
export function name(text, longest = LONGEST) {
  const short = text.length > longest ? `${text.slice(0, longest - 1)}…` : text;
  return html`<bdi class="name" title=${short === text ? nothing : text.slice(0, 1000)}>${short}</bdi>`;
}

export const long = (text) => name(text, 1000);

export const dim = (...what) => html`<span class="dim">${what}</span>`;

export const rank = (row) => html`${name(row.pod)}${row.dp_rank ? dim(` rank ${row.dp_rank}`) : nothing}`;

export const STATES = {
  degraded: "Some events are lost: answers are bounds",
  stale: "No events come in: what it holds is guessed",
  rebuilding: "Its past events are being read",
  exact: "All its events are known: answers are exact",
};

export const state = (value) => html`<span class="state ${value in STATES ? value : ""}" title=${STATES[value] ?? nothing}>${value}</span>`;

// When something was by the server's clock, as an age that grows.
export const ago = (atS) => html`<span class="age">${age(atS && now() - atS)}</span>`;

// What is said where nothing is to be shown, and what to do about it.
export const empty = (what, ...remedy) => html`<div class="empty"><p><strong>${what}</strong></p>${remedy.map((line) => html`<p>${line}</p>`)}</div>`;

// Facts as [label, value, note].
export const cards = (...facts) => html`<dl class="cards">${facts.map(([label, value, note]) => html`<div class="card"><dt>${label}</dt><dd>${value}${note ? dim(note) : nothing}</dd></div>`)}</dl>`;

// Columns are [title, cell of a row, class]. The first one's cells name their rows; on a phone the
// class `stack` shows the titles of the others beside them.
export const head = (columns) => html`<thead><tr>${columns.map(([title, , kind]) => html`<th scope="col" class=${kind ?? nothing}>${title}</th>`)}</tr></thead>`;

export const line = (columns, row, kind) => html`<tr class=${kind ?? nothing}>${columns.map(([title, of, kind], at) => at ? html`<td data-label=${title.strings ? nothing : title} class=${kind ?? nothing}>${of(row)}</td>` : html`<th scope="row">${of(row)}</th>`)}</tr>`;

export const table = (columns, rows, { kind = "stack", caption, kindOf = () => nothing, foot } = {}) => html`<div class=${kind === "small" ? nothing : "scroll"}><table class=${kind}>
  ${caption ? html`<caption>${caption}</caption>` : nothing}${head(columns)}
  <tbody>${rows.map((row) => line(columns, row, kindOf(row)))}</tbody>${foot ? html`<tfoot>${foot.map((row) => line(columns, row))}</tfoot>` : nothing}
</table></div>`;

// A bar of parts: [class, size, title, colour unless the class has one]. A table or text beside it says the same.
export function bar(parts, whole, label) {
  let x = 0;
  return html`<svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none" role=${label ? "img" : nothing} aria-label=${label || nothing} aria-hidden=${label ? nothing : "true"}>
    <rect class="ground" width="1000" height="10"></rect>
    ${parts.map(([kind, size, title, colour]) => {
      const from = x;
      const width = whole > 0 ? Math.max(0, (1000 * size) / whole) : 0;
      x += width;
      return svg`<rect class=${kind} fill=${colour ?? nothing} x=${from} width=${width} height="10"><title>${title}</title></rect>`;
    })}
  </svg>`;
}

export const sum = (rows, of) => rows.reduce((total, row) => total + of(row), 0);

export const stay = (event) => event.preventDefault();

// The part of a page that stands in its address.
export const asked = (key) => new URLSearchParams(location.search).get(key) ?? "";

export const ofRequest = (path, id = asked("request")) => (id ? `${path}?request=${encodeURIComponent(id)}` : path);

export function ask(key, value) {
  const query = new URLSearchParams(location.search);
  if (value) query.set(key, value);
  else query.delete(key);
  history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
  redraw();
}

export const filters = (...parts) => html`<form class="filters" role="search" @submit=${stay}>${parts}</form>`;

export const finder = (hint) => html`<label>Find <input type="search" name="find" placeholder=${hint} .value=${asked("find")} @input=${(event) => ask("find", event.target.value)}></label>`;

export const isFound = (...texts) => texts.join(" ").toLowerCase().includes(asked("find").toLowerCase());

// Options are values, or [value, text].
export const chooser = (label, key, options, chosen = asked(key)) => html`<label>${label}
  <select name=${key} @change=${(event) => ask(key, event.target.value)}>
    ${options.map((option) => [option].flat()).map(([value, text = value]) => html`<option value=${value} ?selected=${value === chosen}>${text}</option>`)}
  </select></label>`;

// A list is drawn in portions, until more of it is asked for.
let further = 0;

export const portion = (rows, size) => rows.slice(0, size + further);

export function more(rows, size, noun = "rank") {
  const left = rows.length - size - further;
  const click = () => { further += size; redraw(); };
  return left > 0 ? html`<p><button type="button" @click=${click}>Show ${count(Math.min(size, left))} more of ${counted(rows.length, noun)}</button></p>` : nothing;
}
