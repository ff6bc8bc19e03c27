// Unpacks the inlined plotly.js and draws the figures in the colours of the page's scheme. Nothing is loaded.
(async () => {
  const nonce = document.currentScript.nonce;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const packed = document.getElementById("plotly").textContent.trim();
  const charts = Object.keys(figures).map((id) => [document.getElementById(`chart-${id}`), figures[id]]);
  if (charts.length === 0) return;

  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const library = document.createElement("script");
  library.nonce = nonce;
  library.textContent = await new Response(stream).text();
  document.head.append(library);

  // A figure names its colours as CSS custom properties ("--series-1").
  const coloured = (value, style) => {
    if (typeof value === "string") return value.startsWith("--") ? style.getPropertyValue(value).trim() : value;
    if (Array.isArray(value)) return value.map((entry) => coloured(entry, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, entry]) => [key, coloured(entry, style)]));
  };
  const draw = () => {
    const style = getComputedStyle(document.documentElement);
    for (const [element, figure] of charts) {
      const { data, layout } = coloured(figure, style);
      Plotly.react(element, data, layout, { displayModeBar: false, responsive: true });
    }
  };
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
