// What pages share. All text from outside goes through here or through bindings of lit-html, which
// make text nodes: it is never read as HTML.

import { html, nothing, svg } from "./vendor/lit-html/lit-html.js";
import { age } from "./format.js";

const LONGEST = 80;

// A name from outside: isolated, so that it cannot turn the text around it, and clipped.
export function name(text, longest = LONGEST) {
  const short = text.length > longest ? `${text.slice(0, longest - 1)}…` : text;
  return html`<bdi class="name" title=${short === text ? nothing : text.slice(0, 1000)}>${short}</bdi>`;
}

export const rank = (row) => html`${name(row.pod)}${row.dp_rank ? html`<span class="dim"> rank ${row.dp_rank}</span>` : nothing}`;

export const STATES = {
  degraded: "Some events are lost: answers are bounds",
  stale: "No events come in: what it holds is guessed",
  rebuilding: "Its past events are being read",
  exact: "All its events are known: answers are exact",
};

export const state = (value) => html`<span class="state ${value in STATES ? value : ""}" title=${STATES[value] ?? nothing}>${value}</span>`;

// When something was, as an age that grows.
export const ago = (live, atS) => html`<span class="age">${age(atS === null || atS === undefined ? null : live.now() - atS)}</span>`;

// What is said where nothing is to be shown, and what to do about it.
export const empty = (what, ...remedy) => html`<div class="empty"><p><strong>${what}</strong></p>${remedy.map((line) => html`<p>${line}</p>`)}</div>`;

export const card = (label, value, note = "") => html`<div class="card"><dt>${label}</dt><dd>${value}${note ? html`<span class="dim">${note}</span>` : nothing}</dd></div>`;

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

export function chooser(label, chosen, options, choose) {
  return html`<label>${label}
    <select @change=${(event) => choose(event.target.value)}>
      ${options.map(([value, text]) => html`<option value=${value} ?selected=${value === chosen}>${text}</option>`)}
    </select></label>`;
}

// The part of a page that stands in its address.
export const asked = (key) => new URLSearchParams(location.search).get(key) ?? "";

export function ask(key, value) {
  const query = new URLSearchParams(location.search);
  if (value) query.set(key, value);
  else query.delete(key);
  history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
}
