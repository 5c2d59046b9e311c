// What all parts of the page use: elements, numbers, keys, colours.

// An element with attributes and children; texts are only ever texts.
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "boolean") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// Makes the children of `parent` those of `items`, keeping those that are there: focus and motion survive.
export function keep(parent, items, keyOf, make, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, at) => {
    const key = String(keyOf(item, at));
    let child = known.get(key);
    known.delete(key);
    if (!child) {
      child = make(item);
      child.dataset.key = key;
    }
    if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at] ?? null);
    update(child, item, at);
  });
  for (const child of known.values()) child.remove();
}

const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const number = (value) => GROUPED.format(value);
const scaled = (value, step, units) => {
  let at = 0;
  while (value >= step && at < units.length - 1) {
    value /= step;
    at += 1;
  }
  return `${at > 0 && value < 10 ? value.toFixed(1).replace(/\.0$/, "") : Math.round(value)}${units[at]}`;
};
export const rate = (value) => (value < 10 ? (Math.round(value * 10) / 10).toString() : value < 10000 ? number(value) : scaled(value, 1000, ["", "k", "M", "G"]));
export const size = (value) => scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"]);
export const hue = (node) => `var(--n${((Number(node.slice(1)) - 1) % 8) + 1})`;
export const clock = (ms, seconds = true) => {
  const at = new Date(ms);
  const two = (part) => String(part).padStart(2, "0");
  return `${two(at.getHours())}:${two(at.getMinutes())}${seconds ? `:${two(at.getSeconds())}` : ""}`;
};
export const bytesOf = (text, base64) => {
  if (base64 !== undefined) return Uint8Array.from(atob(base64), (byte) => byte.charCodeAt(0));
  return text === null || text === undefined ? null : new TextEncoder().encode(text);
};
export const showKey = (bytes) => {
  const text = [...bytes].every((byte) => byte > 32 && byte < 127);
  return text ? String.fromCharCode(...bytes) : `0x${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
};
export const lasts = (ms) => {
  const seconds = Math.floor(ms / 1000);
  const [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600), Math.floor(seconds / 60)];
  return days > 1 ? `${days} d` : hours > 1 ? `${hours} h` : minutes > 1 ? `${minutes} min` : `${seconds} s`;
};
