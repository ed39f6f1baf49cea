// One answer: asked, shown while it is generated, and told at which speed.

import { marked } from "./vendor/marked.esm.js";
import { post } from "./api.js";

// HTML in an answer is shown as text, and a picture as its words: it may be of another host.
marked.use({
  renderer: { html: ({ text }) => escaped(text), image: ({ text }) => escaped(text) },
});
const CLEAN = {
  FORBID_TAGS: ["style", "img", "picture", "video", "audio", "source", "form", "input", "svg"],
  FORBID_ATTR: ["style", "id", "name"],
};

/** A new message at the end of the conversation. */
export function addMessage(role, text = "") {
  const element = document.createElement("div");
  element.className = `message ${role}`;
  element.textContent = text;
  const all = document.getElementById("messages");
  all.append(element);
  all.scrollTop = all.scrollHeight;
  return element;
}

/** Ask, and show the answer in `element`. Returns {text, lens, timings}; text is what has come so
 * far if it was stopped. `tell` is called with lines about reading and speed. */
export async function ask(request, element, signal, tell) {
  const answer = { text: "", thoughts: "", lens: null, timings: null };
  const began = performance.now();
  let first = 0, pieces = 0;
  const show = scheduled(() => render(element, answer));
  try {
    for await (const { comment, data } of post("/v1/chat/completions", request, signal)) {
      if (comment !== undefined) tell(comment);
      if (data?.timings) answer.timings = data.timings;
      if (data?.lens) answer.lens = data.lens;
      const delta = data?.choices?.[0]?.delta;
      if (!delta?.content && !delta?.reasoning_content) continue;
      first ||= performance.now();
      pieces += 1;
      answer.text += delta.content ?? "";
      answer.thoughts += delta.reasoning_content ?? "";
      const seconds = (performance.now() - first) / 1000;
      if (seconds > 0.5) tell(`${(pieces / seconds).toFixed(1)} pieces/s`);
      show();
    }
    tell(speedOf(answer.timings, first ? (first - began) / 1000 : 0));
  } finally {
    render(element, answer);
  }
  return answer;
}

function escaped(text) {
  const place = document.createElement("span");
  place.textContent = text;
  return place.innerHTML;
}

function speedOf(timings, firstSeconds) {
  if (!timings) return "";
  const { cache_n, prompt_n, predicted_n, predicted_ms } = timings;
  const rate = ((1000 * predicted_n) / predicted_ms).toFixed(1);
  return `${predicted_ms ? `${rate} tokens/s, ` : ""}${predicted_n} generated; ${prompt_n} read, ${cache_n} cached; ` +
    `first text after ${firstSeconds.toFixed(2)} s`;
}

function render(element, { text, thoughts }) {
  const all = element.parentElement;
  const follows = all && all.scrollHeight - all.scrollTop - all.clientHeight < 60;
  element.innerHTML = window.DOMPurify.sanitize(marked.parse(text), CLEAN);
  for (const link of element.querySelectorAll("a[href]")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  if (thoughts) {
    const shown = document.createElement("details");
    const summary = document.createElement("summary");
    summary.textContent = "Thoughts";
    const words = document.createElement("div");
    words.className = "thoughts";
    words.textContent = thoughts;
    shown.append(summary, words);
    shown.open = !text;
    element.prepend(shown);
  }
  if (follows) all.scrollTop = all.scrollHeight;
}

function scheduled(work) {
  let waits = false;
  return () => {
    if (waits) return;
    waits = true;
    requestAnimationFrame(() => {
      waits = false;
      work();
    });
  };
}
