// Documents: opened or pasted, read by the server with its progress shown, and chosen to ask about.

import { get, post, remove } from "./api.js";

const byId = (id) => document.getElementById(id);
const texts = new Map(); // of the documents that this page has read, by name

const CONVERTED = /\.(pdf|docx|epub|x?html?)$/i; // what the server turns into text

let reading = null;
let file = null; // chosen, for the server to convert

export function chosenPack() {
  return byId("pack").value;
}

/** The text of the chosen document if this page has read it, else "". */
export function chosenText() {
  return texts.get(chosenPack()) ?? "";
}

/** Ask which documents there are. Keeps the choice. */
export async function listPacks(choice = chosenPack()) {
  show((await get("/packs")).packs, choice);
}

function show(packs, choice) {
  const options = packs
    .filter((pack) => pack.is_sound !== false)
    .map(({ name, n_tokens, is_finished }) => {
      const unfinished = is_finished === false ? ", not finished" : "";
      return new Option(`${name} (${counted(n_tokens)} tokens${unfinished})`, name);
    });
  byId("pack").replaceChildren(new Option("no document", ""), ...options);
  byId("pack").value = options.some((option) => option.value === choice) ? choice : "";
  byId("remove").hidden = !byId("pack").value;
}

function counted(n) {
  return n.toLocaleString("en");
}

function tell(line) {
  byId("read-status").textContent = line;
}

/** Read what was pasted or opened; a second call stops the first. */
async function read(on) {
  if (reading) {
    reading.abort();
    return;
  }
  const text = byId("text").value;
  const name = byId("name").value.trim() || "document";
  if (!text && !file) {
    tell("Choose a file or paste a text first.");
    return;
  }
  reading = new AbortController();
  byId("read").textContent = "Stop";
  const bar = byId("progress");
  bar.hidden = false;
  bar.removeAttribute("value");
  const began = performance.now();
  tell(`Reading ${name}`);
  try {
    const [path, body] = file
      ? [`/packs?name=${encodeURIComponent(name)}`, file]
      : ["/packs", { name, text }];
    for await (const { data } of post(path, body, reading.signal)) {
      if (data?.total) showProgress(bar, data, began);
      if (data?.pack) await chooseRead(name, text, data, on);
    }
  } catch (error) {
    if (error.status === 401) on.onKey();
    tell(error.name === "AbortError" ? "Stopped. Read it again to go on." : error.message);
  } finally {
    bar.hidden = true;
    byId("read").textContent = "Read";
    reading = null;
  }
}

function showProgress(bar, { done, total, cached }, began) {
  bar.max = total;
  bar.value = done;
  const seconds = (performance.now() - began) / 1000;
  const rate = Math.round((done - cached) / seconds);
  const speed = done > cached && seconds > 0.2 ? `, ${rate} tokens/s` : "";
  tell(`${counted(done)} of ${counted(total)} tokens${speed}`);
}

async function chooseRead(name, text, { pack, seconds, notices = [] }, on) {
  texts.set(name, text);
  await listPacks(name);
  const speed = seconds ? `, ${Math.round(pack.n_tokens / seconds)} tokens/s` : "";
  tell([`Read ${counted(pack.n_tokens)} tokens${speed}.`, ...notices].join(" "));
  byId("new").open = false;
  on.onChosen();
  on.onRead();
}

async function open(chosen) {
  if (!chosen) return;
  file = CONVERTED.test(chosen.name) ? chosen : null;
  byId("text").value = file ? "" : await chosen.text();
  byId("name").value = chosen.name.replace(/^\.+/, "").slice(0, 100);
  byId("read").focus();
}

/** on: {onChosen: another document is asked about, onRead: one was read, onKey: a key is wanted}. */
export function startDocuments(on) {
  byId("document-form").addEventListener("submit", (event) => {
    event.preventDefault();
    read(on);
  });
  byId("file").addEventListener("change", (event) => open(event.target.files[0]));
  byId("text").addEventListener("input", () => {
    file = null; // what is pasted comes in its place
    byId("file").value = "";
  });
  byId("pack").addEventListener("change", () => {
    byId("remove").hidden = !chosenPack();
    on.onChosen();
    byId("pack").focus();
  });
  byId("remove").addEventListener("click", async () => {
    try {
      show((await remove(`/packs/${encodeURIComponent(chosenPack())}`)).packs, "");
      on.onChosen();
    } catch (error) {
      tell(error.message);
    }
  });
}
