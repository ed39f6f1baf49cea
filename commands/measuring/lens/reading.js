
"use strict";
// The page of `kvarn lens`: what computes. page.py says what the data are.

async function unpacked(text) {
  const letters = atob(text);
  const raw = new Uint8Array(letters.length);
  for (let i = 0; i < raw.length; i++) raw[i] = letters.charCodeAt(i);
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
  return numbersOf(new Uint8Array(await new Response(stream).arrayBuffer()));
}

// Numbers of seven bits a byte, the lowest first; the eighth bit says that more follow.
function numbersOf(bytes) {
  const numbers = new Uint32Array(bytes.reduce((n, byte) => n + (byte < 128), 0));
  let value = 0, place = 1, at = 0;
  for (const byte of bytes) {
    value += (byte & 127) * place;
    place *= 128;
    if (byte < 128) {
      numbers[at++] = value;
      value = 0;
      place = 1;
    }
  }
  return numbers;
}

// What a step read, [layer][head]: ascending positions; null for a layer that did not choose.
function listsOf(numbers, nLayers, nHeads) {
  const layers = [];
  let at = 0;
  for (let layer = 0; layer < nLayers; layer++) {
    if (!numbers[at++]) {
      layers.push(null);
      continue;
    }
    const heads = [];
    for (let head = 0; head < nHeads; head++) {
      const list = new Uint32Array(numbers[at++]);
      let position = 0;
      for (let i = 0; i < list.length; i++) list[i] = position += numbers[at++];
      heads.push(list);
    }
    layers.push(heads);
  }
  return layers;
}

function countsOf(list, part, nParts) {
  const counts = new Uint32Array(nParts);
  for (const position of list) counts[Math.floor(position / part)]++;
  return counts;
}

// Tokens of a part that a step could have read.
function sizeOf(index, part, stored) {
  return Math.max(0, Math.min(part, stored - index * part));
}

// The rows of a picture: of each layer one, or one for each head. Their lists: null: no choice.
function rowsOf(data, lists, perHead) {
  const rows = [];
  data.layers.forEach((number, layer) => {
    const heads = lists && lists[layer];
    if (!perHead) rows.push({ name: `layer ${number}`, lists: heads });
    for (let head = 0; perHead && head < data.heads; head++) {
      rows.push({ name: `layer ${number}, head ${head}`, lists: heads && [heads[head]] });
    }
  });
  return rows;
}

// Of each part, the tokens read as a share of those that could have been, over all lists.
function sharesOf(data, lists, stored) {
  const shares = new Float64Array(data.parts);
  for (const list of lists) {
    countsOf(list, data.part, data.parts).forEach((n, i) => (shares[i] += n));
  }
  return shares.map((n, i) => n / Math.max(1, sizeOf(i, data.part, stored) * lists.length));
}

// How many lists hold each of the tokens first … last-1.
function readersOf(lists, first, last) {
  const readers = new Uint32Array(last - first);
  for (const list of lists) {
    let low = 0, high = list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (list[middle] < first) low = middle + 1;
      else high = middle;
    }
    for (; low < list.length && list[low] < last; low++) readers[list[low] - first]++;
  }
  return readers;
}
