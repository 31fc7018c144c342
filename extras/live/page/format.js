// Numbers as people read them.

export function seconds(value) {
  if (value < 0.0995) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 99.5) return `${value.toFixed(1)} s`;
  return value < 5999 ? `${(value / 60).toFixed(0)} min` : `${(value / 3600).toFixed(1)} h`;
}

export function milliseconds(value) {
  return value < 10 ? value.toFixed(2) : value < 1000 ? value.toFixed(1) : value.toFixed(0);
}

export function bytes(value) {
  return value < 1e9 ? `${(value / 2 ** 20).toFixed(0)} MB` : `${(value / 2 ** 30).toFixed(1)} GB`;
}

export function count(value) {
  return Math.round(value).toLocaleString("en");
}

export function percent(fraction) {
  return `${(100 * fraction).toFixed(fraction < 0.0995 ? 1 : 0)} %`;
}

export function rate(value) {
  return value < 10 ? value.toFixed(1) : value.toFixed(0);
}
