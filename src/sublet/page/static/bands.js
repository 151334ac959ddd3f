// Computes what a plot of a device's memory shows. Pure: rows in, shapes out.
//
// From the bottom: nurseries, then a band for each lease, as tall as the device is charged, filled as far
// as the job uses it. Programs without a lease hang from the top. What is free lies in between.

// The row that held at a moment; rows hold until the next one.
export function rowAt(rows, at) {
  let low = 0;
  let high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle][0] <= at) low = middle + 1;
    else high = middle;
  }
  return low ? rows[low - 1] : null;
}

export function inUse(row) {
  return row[3].reduce((sum, [, , used]) => sum + used, row[1] + row[2]);
}

// One row for each step of the plot: of several, the fullest. Before the first row nothing is known.
export function thin(rows, from, to, steps) {
  const width = (to - from) / steps;
  const shown = [];
  let index = 0;
  let held = null;
  for (let step = 0; step < steps; step += 1) {
    const begin = from + step * width;
    const end = begin + width;
    let fullest = null;
    while (index < rows.length && rows[index][0] < end) {
      const row = rows[index];
      if (row[0] < begin) held = row;
      else {
        if (fullest === null) fullest = held;
        if (fullest === null || inUse(row) >= inUse(fullest)) fullest = row;
        held = row;
      }
      index += 1;
    }
    shown.push(fullest ?? held);
  }
  return shown;
}

// For each job and each step where it holds something: [step, bottom, top of its use, top of its lease].
export function stack(shown) {
  const jobs = new Map();
  const base = [];
  shown.forEach((row, step) => {
    if (row === null) {
      base.push(null);
      return;
    }
    const [, strangers, nurseries, holdings] = row;
    base.push([nurseries, strangers]);
    let bottom = nurseries;
    for (const [job, charge, used] of holdings) {
      const height = Math.max(charge, used);
      if (!jobs.has(job)) jobs.set(job, []);
      jobs.get(job).push([step, bottom, bottom + used, bottom + height]);
      bottom += height;
    }
  });
  return { base, jobs };
}

// The runs of steps without a gap.
export function runs(points) {
  const found = [];
  for (const point of points) {
    const last = found[found.length - 1];
    if (last && last[last.length - 1][0] === point[0] - 1) last.push(point);
    else found.push([point]);
  }
  return found;
}

// The longest part of a run that stays at one height: a label that stands there covers no other band.
export function level(run) {
  let best = [0, 0];
  let start = 0;
  for (let index = 1; index <= run.length; index += 1) {
    const same = index < run.length && run[index][1] === run[start][1] && run[index][3] === run[start][3];
    if (same) continue;
    if (index - start > best[1] - best[0]) best = [start, index];
    start = index;
  }
  return run.slice(...best);
}

// The outline of a run between two of its columns, as the path of a polygon with steps.
export function outline(run, low, high, x, y) {
  const up = [];
  const down = [];
  for (const point of run) {
    const left = x(point[0]);
    const right = x(point[0] + 1);
    up.push(`${left},${y(point[high])} ${right},${y(point[high])}`);
    down.push(`${right},${y(point[low])} ${left},${y(point[low])}`);
  }
  return `M${up.join(" L")} L${down.reverse().join(" L")} Z`;
}

// Round amounts for the axis: at most five.
export function ticks(capacity) {
  let step = 1 << 20;
  while (capacity / step > 5) step *= 2;
  const found = [];
  for (let at = step; at < capacity * 0.97; at += step) found.push(at);
  return found;
}

const STEPS = [10, 30, 60, 300, 900, 1800, 3600, 10800, 21600, 43200, 86400];

// Round moments for the axis, in the browser's own time zone.
export function moments(from, to, most) {
  const step = STEPS.find((one) => (to - from) / one <= most) ?? 172800;
  const shift = new Date(to * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let at = Math.ceil((from - shift) / step) * step + shift; at < to; at += step) found.push(at);
  return found;
}
