// Draws one chart with the plotly.js that this server hands out. `props.value` is the JSON that ui/charts.py describes.
const find = (part) => element.querySelector(`[data-part="${part}"]`);
const plot = find("plot");
const CONFIG = { displayModeBar: false, responsive: false, staticPlot: false, scrollZoom: false };
let waiting = null;
let scheduled = false;

function colour(name) {
  return getComputedStyle(element.querySelector(".chart")).getPropertyValue(`--lens-${name}`).trim();
}

function axis(title, extra) {
  return {
    title: { text: title, font: { size: 12 }, standoff: 6 },
    gridcolor: colour("line"),
    zerolinecolor: colour("line"),
    linecolor: colour("line"),
    rangemode: "tozero",
    fixedrange: true,
    automargin: true,
    ...extra,
  };
}

function trace(series) {
  const shared = { name: series.name, x: series.x, y: series.y, hovertemplate: series.hover };
  if (series.kind === "bar") {
    return { ...shared, type: "bar", marker: { color: colour(series.colour) } };
  }
  return {
    ...shared,
    type: "scatter",
    mode: series.markers ? "lines+markers" : "lines",
    line: { color: colour(series.colour), width: 2.4, dash: series.dash, shape: series.shape },
    fill: series.filled ? "tozeroy" : "none",
  };
}

function layout(chart) {
  return {
    autosize: true,
    height: 220,
    margin: { l: 8, r: 12, t: 8, b: 8 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("dim"), size: 12, family: "system-ui, sans-serif" },
    xaxis: axis(chart.x_title, chart.categories ? { type: "category" } : {}),
    yaxis: axis(chart.y_title, chart.y_range ? { range: chart.y_range } : {}),
    showlegend: chart.series.length > 1,
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 } },
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("panel"), font: { color: colour("ink") } },
    barmode: "group",
    bargap: 0.25,
  };
}

function draw() {
  scheduled = false;
  if (!waiting) return;
  const chart = waiting;
  find("title").textContent = chart.title;
  plot.setAttribute("aria-label", chart.description);
  find("empty").textContent = chart.series.length ? "" : chart.empty;
  // A hidden tab has no width to draw into: wait until it is shown.
  if (!plot.clientWidth) return;
  window.Plotly.react(plot, chart.series.map(trace), layout(chart), CONFIG);
}

function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(draw);
}

function read() {
  if (!props.value) return;
  waiting = JSON.parse(props.value);
  schedule();
}

new ResizeObserver(schedule).observe(plot);
new MutationObserver(schedule).observe(document.body, { attributes: true, attributeFilter: ["class"] });
watch("value", read);
read();
