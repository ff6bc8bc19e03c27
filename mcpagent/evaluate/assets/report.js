// Draws the charts and fills the list of episodes. A report holds all that it shows and loads nothing; the page
// of `mcpagent view` (data-live) asks its own server again and again.
(async () => {
  const nonce = document.currentScript.nonce;
  const isLive = document.body.dataset.live === "true";
  const text = (id) => document.getElementById(id).textContent.trim();
  const unpacked = async (packed) => {
    const letters = atob(packed);
    const bytes = new Uint8Array(letters.length);
    for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);  // `from` takes three times as long
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  const element = (tag, properties, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };

  // Charts. A figure names its colours as CSS custom properties ("--series-1").
  let figures = JSON.parse(text("figures"));
  const coloured = (value, style) => {
    if (typeof value === "string") return value.startsWith("--") ? style.getPropertyValue(value).trim() : value;
    if (Array.isArray(value)) return value.map((entry) => coloured(entry, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, entry]) => [key, coloured(entry, style)]));
  };
  const loadPlotly = async () => {
    if (window.Plotly) return;
    document.head.append(element("script", { nonce, textContent: await unpacked(text("plotly")) }));
  };
  const draw = async () => {
    const charts = Object.keys(figures).map((id) => [document.getElementById(`chart-${id}`), figures[id]]);
    if (charts.length === 0) return;
    await loadPlotly();
    const style = getComputedStyle(document.documentElement);
    for (const [place, figure] of charts) {
      const { data, layout } = coloured(figure, style);
      Plotly.react(place, data, layout, { displayModeBar: false, responsive: true });
    }
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  // Episodes: `files` has the rows of each file, in the order in which they are listed.
  const SHOWN = 50;
  const BADGES = { success: ["pass", "✓ success"], failure: ["fail", "✗ failure"], unscored: ["open", "unscored"] };
  const section = document.getElementById("episodes");
  let files = {};
  let leftOut = 0;
  let shown = SHOWN;
  const controls = section ? [...section.querySelectorAll("[data-filter]")] : [];
  const wanted = () => Object.fromEntries(controls.map((control) => [control.dataset.filter, control.value]));
  const searched = (row) => `${row.task}\n${row.question}\n${row.calls}\n${row.answer}`.toLowerCase();
  const fits = (stem, row, filter) =>
    (!filter.source || stem === filter.source) &&
    (!filter.outcome || row.outcome === filter.outcome) &&
    (!filter.stop || row.stop === filter.stop) &&
    (!filter.complexity || row.complexity === filter.complexity) &&
    (!filter.tool || row.tools.includes(filter.tool)) &&
    (!filter.task || row.task.toLowerCase().includes(filter.task.toLowerCase())) &&
    (!filter.text || searched(row).includes(filter.text.toLowerCase()));

  const details = JSON.parse(text("episode-details"));
  const chunks = new Map();
  const detail = async (stem, place) => {
    if (isLive) {
      const answer = await fetch(`episode?${new URLSearchParams({ file: stem, place })}`);
      return answer.text();
    }
    const { chunk: size, files: packed } = details;
    const key = `${stem} ${Math.floor(place / size)}`;
    if (!chunks.has(key)) chunks.set(key, JSON.parse(await unpacked(packed[stem][Math.floor(place / size)])));
    return chunks.get(key)[place % size];
  };
  // Words that the model wrote, each with a shade for its logprob.
  const shade = (pre) => {
    const letters = pre.textContent;
    const nats = pre.dataset.nats.split(",");
    let at = 0;
    const words = pre.dataset.lengths.split(",").map((length, i) => {
      const word = letters.slice(at, (at += Number(length)));
      const lost = Number(nats[i]) / 10;
      const made = element("span", { textContent: word, title: `logprob ${(-lost).toFixed(1)}` });
      if (lost >= 0.1) made.style.background = `rgb(from var(--fail) r g b / ${Math.min(0.7, 0.08 + lost / 6)})`;
      return made;
    });
    pre.replaceChildren(...words);
  };
  const card = (stem, row, place) => {
    const [kind, label] = BADGES[row.outcome];
    const reward = row.reward === null ? "" : ` · reward ${row.reward.toFixed(2)}`;
    const facts = `${stem} · ${row.turns} turn${row.turns === 1 ? "" : "s"}${reward}`;
    const summary = element(
      "summary", {},
      element("span", { className: "question", textContent: row.question }),
      element("span", { className: "muted facts-of", textContent: facts }),
      element("span", { className: `badge ${kind}`, textContent: label }),
    );
    const made = element("details", { className: "pair card episode" }, summary);
    made.addEventListener("toggle", async () => {
      if (!made.open || made.children.length > 1) return;
      const place_ = element("div", { className: "opened" });
      made.append(place_);
      place_.innerHTML = await detail(stem, place);  // escaped by the writer; the policy refuses scripts in it
      place_.querySelectorAll("pre.tokens").forEach(shade);
    });
    return made;
  };
  const options = (name, values) => {
    const control = controls.find((each) => each.dataset.filter === name);
    const present = new Set([...control.options].map((option) => option.value));
    for (const value of values) if (!present.has(value)) control.append(element("option", { value, textContent: value.replaceAll("_", " ") }));
  };
  const fill = () => {
    const rows = Object.values(files).flat();
    section.hidden = rows.length === 0;
    options("source", Object.keys(files));
    for (const key of ["outcome", "stop", "complexity"]) options(key, [...new Set(rows.map((row) => row[key]))].sort());
    options("tool", [...new Set(rows.flatMap((row) => row.tools))].sort());
    list();
  };
  const list = () => {
    const filter = wanted();
    const fitting = [];
    for (const [stem, rows] of Object.entries(files)) rows.forEach((row, place) => fits(stem, row, filter) && fitting.push([stem, row, place]));
    const all = Object.values(files).reduce((sum, rows) => sum + rows.length, 0);
    const successes = fitting.filter(([, row]) => row.outcome === "success").length;
    document.getElementById("episode-count").textContent =
      `${fitting.length.toLocaleString("en")} of ${all.toLocaleString("en")} episodes, ${successes.toLocaleString("en")} of them successes` +
      (leftOut ? `; ${leftOut.toLocaleString("en")} older ones are not listed` : "");
    document.getElementById("episode-list").replaceChildren(...fitting.slice(0, shown).map((each) => card(...each)));
    document.getElementById("episode-more").hidden = fitting.length <= shown;
  };
  if (section) {
    for (const control of controls) control.addEventListener("input", () => { shown = SHOWN; list(); });
    document.getElementById("episode-more").addEventListener("click", () => { shown += SHOWN; list(); });
  }

  if (!isLive) {
    const packed = text("episode-rows");
    if (packed) { files = JSON.parse(await unpacked(packed)); fill(); }
    await draw();
    document.body.dataset.drawn = "true";
    return;
  }

  // Live: what has changed since the last answer. What a reader has opened stays as it is.
  let version = "";
  const follow = async () => {
    try {
      const answer = await fetch(`state?${new URLSearchParams({ version })}`);
      const state = await answer.json();
      document.title = document.title.replace(/^\(ended\) /, "");
      if (state.version !== version) {
        version = state.version;
        const scrolled = window.scrollY;
        document.getElementById("summary").innerHTML = state.summary;
        figures = state.figures;
        await draw();
        files = state.episodes;
        leftOut = state.left_out;
        if (!section.querySelector("details[open]")) fill();
        window.scrollTo(0, scrolled);
      }
    } catch {
      document.title = document.title.replace(/^(?!\(ended\))/, "(ended) ");
    }
    setTimeout(follow, 2000);
  };
  await follow();
})();
