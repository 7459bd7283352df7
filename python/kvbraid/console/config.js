// Config: what counts since when, what waits for the next start, and the last file that was refused.

import { html, nothing } from "./vendor/lit-html/lit-html.js";
import { age, counted } from "./format.js";
import { cards, empty, long, name, table } from "./parts.js";
import { live } from "./stream.js";

export const topics = ["config"];

const since = (atS) => age(atS && Date.now() / 1000 - atS); // Of the day's clock.

export function view() {
  const { file, refused, waiting, keys, config } = live.config;
  return html`
    ${refused ? html`<div class="banner" role="alert">The file was refused ${since(refused.at)}, and nothing of it counts: <b>${long(refused.error)}</b></div>` : nothing}
    ${cards(
      ["In force since", since(live.config.since), "when it was read"],
      ["File", file ? name(file) : "none", file ? "and the flags of the command line" : "flags and defaults count"],
      ["Waiting", counted(waiting.length, "key"), waiting.length ? `${waiting.join(", ")}: at the next start` : "for the next start"],
    )}
    <h2>Keys</h2>
    ${keys.length ? table(KEYS, keys) : empty("There are no keys.", "Everyone who reaches the port may read. kvbraid new-key makes one for [[keys]] in fleet.toml.")}
    <h2>In force</h2>
    ${Object.entries(config).map(part)}`;
}

const KEYS = [
  ["Key", (key) => key.name],
  ["Rights", (key) => key.rights.join(", ")],
  ["Last used", (key) => since(key.last_used)],
];

const lines = (table) => Object.entries(table).map(([key, value]) => (value === null ? `# ${key}` : `${key} = ${JSON.stringify(value)}`)).join("\n");

const part = ([title, value]) => html`<details class="panel"><summary>${Array.isArray(value) ? `[[${title}]]: ${value.length}` : `[${title}]`}</summary><pre>${[value].flat().map((it) => (it === null ? "not given" : lines(it))).join("\n\n")}</pre></details>`;
