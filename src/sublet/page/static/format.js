// Amounts and spans in words, as the commands write them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(amount) {
  if (amount === null || amount === undefined) return "–";
  let size = amount;
  let unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || size >= 100 ? 0 : 1;
  return `${size.toFixed(digits)} ${UNITS[unit]}`;
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.max(0, seconds);
  if (whole < 10) return `${whole.toFixed(1)} s`;
  if (whole < 120) return `${Math.round(whole)} s`;
  if (whole < 7200) return `${Math.round(whole / 60)} min`;
  if (whole < 172800) return `${(whole / 3600).toFixed(1)} h`;
  return `${(whole / 86400).toFixed(1)} d`;
}

export function clock(seconds, withSeconds) {
  const options = { hour: "2-digit", minute: "2-digit", hour12: false };
  if (withSeconds) options.second = "2-digit";
  return new Date(seconds * 1000).toLocaleTimeString([], options);
}

export function date(seconds) {
  const day = { day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit", hour12: false };
  return new Date(seconds * 1000).toLocaleString([], day);
}

// A colour for each job: neighbours in number are far apart on the circle.
export function hue(job) {
  return Math.round((job * 137.508) % 360);
}
