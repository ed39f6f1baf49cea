
// The page of `kvarn lens`: what draws.

const MOST = 16;

function element(name) {
  return document.getElementById(name);
}

function percent(share) {
  return `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`;
}

// 256 colours between those of the style sheet: of a share and the mean of its row, by the
// logarithm of 1 + share / mean, up to 16 times the mean.
function palette() {
  const style = getComputedStyle(document.documentElement);
  const rgb = (name) => {
    const hex = style.getPropertyValue(name).trim().slice(1);
    return [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
  };
  const stops = [0, 1, 2, 3].map((i) => rgb(`--heat-${i}`));
  const colours = Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * 3, from = Math.min(2, Math.floor(at));
    return stops[from].map((c, k) => c + (stops[from + 1][k] - c) * (at - from));
  });
  const place = (share, mean) => Math.log2(1 + share / mean) / Math.log2(1 + MOST);
  const colour = (share, mean) => colours[Math.round(255 * Math.min(1, mean && place(share, mean)))];
  return { colour, none: rgb("--none") };
}

// A row of pixels for each of `rows`, shares of the parts or null; each `height` pixels high.
function draw(heat, rows, width, height) {
  const canvas = heat.querySelector("canvas"), colours = palette();
  canvas.width = width;
  canvas.height = rows.length;
  heat.style.height = `${rows.length * height}px`;
  heat.style.minWidth = `${width}px`;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, rows.length);
  rows.forEach((shares, y) => {
    const mean = shares && shares.reduce((sum, share) => sum + share, 0) / width;
    for (let x = 0; x < width; x++) {
      const pixel = shares ? colours.colour(shares[x], mean) : colours.none;
      image.data.set([...pixel, 255], 4 * (y * width + x));
    }
  });
  context.putImageData(image, 0, 0);
}

// Which cell of a picture the mouse is on.
function cellAt(event, heat, nRows, nColumns) {
  const box = heat.getBoundingClientRect();
  const within = (x, n) => Math.max(0, Math.min(n - 1, Math.floor(x * n)));
  return {
    row: within((event.clientY - box.top) / box.height, nRows),
    part: within((event.clientX - box.left) / box.width, nColumns),
  };
}
