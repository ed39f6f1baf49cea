// The lens: which passages an answer attended to most, and one of them in its text.

import { chosenText } from "./documents.js";

const byId = (id) => document.getElementById(id);
const AROUND = 400; // characters of the text that are shown before and after a passage

export function hideLens() {
  byId("lens").hidden = true;
}

/** lens: {passages: [{start, stop, share, text, place}], note} of an answer. */
export function showLens({ passages, note }) {
  byId("lens").hidden = false;
  byId("passage").hidden = true;
  byId("lens-status").textContent = passages.length
    ? "What the answer attended to, beyond what a neutral question does:"
    : `No passages: ${note || "nothing weighed more than for a neutral question"}.`;
  byId("passages").replaceChildren(...passages.map(itemOf));
}

function itemOf(passage, number) {
  const item = document.createElement("li");
  const button = document.createElement("button");
  button.type = "button";
  button.id = `passage-${number}`;
  button.className = "secondary outline";
  const start = document.createElement("span");
  start.className = "start";
  const words = passage.text.trim().replace(/\s+/g, " ").slice(0, 90);
  start.textContent = `${(100 * passage.share).toFixed(0)}% ${passage.place}: ${words}`;
  const bar = document.createElement("progress");
  bar.className = "bar";
  bar.max = 1;
  bar.value = passage.share;
  button.title = `tokens ${passage.start} to ${passage.stop - 1}: ` +
    `${(100 * passage.share).toFixed(1)}% of the attention`;
  button.append(start, bar);
  button.addEventListener("click", () => showPassage(passage, button));
  item.append(button);
  return item;
}

/** The passage, marked in its document if this page has the text. */
function showPassage({ text }, button) {
  for (const one of byId("passages").querySelectorAll("[aria-pressed]")) {
    one.removeAttribute("aria-pressed");
  }
  button.setAttribute("aria-pressed", "true");
  const place = byId("passage");
  const whole = chosenText();
  const at = whole.indexOf(text);
  const mark = document.createElement("mark");
  mark.textContent = text;
  const before = at < 0 ? "" : whole.slice(Math.max(0, at - AROUND), at);
  const after = at < 0 ? "" : whole.slice(at + text.length, at + text.length + AROUND);
  place.replaceChildren(before, mark, after);
  place.hidden = false;
  mark.scrollIntoView({ block: "nearest" });
}
