// The events of a node: server-sent, read with fetch, since EventSource can send no token and does not notice a node that
// stands still. When the node that feeds the page says nothing, another one is asked.

const SILENCE_MS = 3500; // three events that did not come
const PAUSE_MS = 300; // between two nodes, and longer from round to round while none answers
const PAUSE_MAX_MS = 2000;
const OPINION_MS = 10000; // how long a node that hears no majority is passed over

export class Stream {
  // `bases`: where nodes serve, '' for whoever served the page. `on`: event(value, base), which says whether it is of this
  // cluster; lost(base, next, why); denied(text).
  constructor(bases, on) {
    this.bases = bases;
    this.on = on;
    this.at = 0;
    this.failures = 0; // in a row
    this.alone = new Map(); // when a node last failed, or heard no majority
    this.token = sessionStorage.getItem("token") ?? "";
    this.wake = () => {};
  }

  // More nodes are known by now.
  know(bases) {
    for (const base of bases) if (!this.bases.includes(base)) this.bases.push(base);
  }

  use(token) {
    this.token = token;
    sessionStorage.setItem("token", token);
    this.wake();
  }

  async run() {
    for (;;) {
      const base = this.bases[this.at % this.bases.length];
      let why = "no answer";
      try {
        why = await this.read(base);
      } catch {
        // The network's words differ from browser to browser.
      }
      this.at += 1;
      if (why === "denied") {
        await new Promise((wake) => (this.wake = wake));
        continue;
      }
      this.alone.set(base, Date.now());
      this.on.lost(base, this.bases[this.at % this.bases.length], why);
      this.failures += 1;
      const pause = PAUSE_MS * (1 + Math.floor(this.failures / this.bases.length));
      await new Promise((done) => setTimeout(done, Math.min(pause, PAUSE_MAX_MS)));
    }
  }

  async read(base) {
    const stop = new AbortController();
    let watch = setTimeout(() => stop.abort(), SILENCE_MS);
    try {
      const headers = { "Coppice-Page": "1" };
      if (this.token) headers.Authorization = `Bearer ${this.token}`;
      const answer = await fetch(`${base}/ui/events`, { headers, signal: stop.signal, cache: "no-store", credentials: "omit" });
      if (answer.status === 401 || answer.status === 403) {
        this.at -= 1;
        this.on.denied((await answer.text()).trim());
        return "denied";
      }
      if (!answer.ok) return (await answer.text()).trim();
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return "it ended";
        clearTimeout(watch);
        watch = setTimeout(() => stop.abort(), SILENCE_MS);
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        for (const event of events) {
          if (!event.startsWith("data: ")) continue;
          const told = JSON.parse(event.slice(6));
          // What a node that is cut off believes is shown only if no other one knows better.
          if (told.status && !told.status.majority && this.passes(base)) return "it hears no majority";
          if (!this.on.event(told, base)) return "it is of another cluster (reload the page to see that one)";
          this.failures = 0;
        }
      }
    } finally {
      clearTimeout(watch);
      stop.abort();
    }
  }

  // A node that hears no majority knows only itself: others may know better, unless none of them did lately.
  passes(base) {
    return this.bases.some((other) => other !== base && Date.now() - (this.alone.get(other) ?? 0) > OPINION_MS);
  }
}
