// A small line chart with a playhead, in front of replay.js: `makeReplayChart(svg)`. It draws what ui/charts.py describes.
function makeReplayChart(svg) {
  const SVG = "http://www.w3.org/2000/svg";
  const EDGE = { left: 58, right: 10, top: 8, bottom: 36 };
  const DASHES = { solid: "", dash: "7 4", dot: "2 3" };
  let chart = null;
  let end = 1;
  let head = null;
  let at = null;

  function make(tag, attributes, text) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    svg.append(made);
    return made;
  }

  function pickTicks(top, most) {
    const rough = top / most || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    return Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, number) => Number((number * step).toPrecision(6)));
  }

  function placeX(seconds) {
    return EDGE.left + (seconds / end) * (svg.clientWidth - EDGE.left - EDGE.right);
  }

  function draw() {
    svg.replaceChildren();
    // A hidden tab has no width to draw into: wait until it is shown.
    if (!chart || !svg.clientWidth) return;
    const { clientWidth: width, clientHeight: height } = svg;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const most = Math.max(1, ...chart.series.map((series) => series.y.at(-1) ?? 0));
    const placeY = (count) => height - EDGE.bottom - (count / most) * (height - EDGE.top - EDGE.bottom);
    for (const count of pickTicks(most, 4)) {
      make("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: placeY(count), y2: placeY(count) });
      make("text", { x: EDGE.left - 6, y: placeY(count) + 4, "text-anchor": "end" }, count);
    }
    for (const seconds of pickTicks(end, width / 80)) {
      make("text", { x: placeX(seconds), y: height - EDGE.bottom + 15, "text-anchor": "middle" }, seconds);
    }
    const middle = (EDGE.left + width - EDGE.right) / 2;
    make("text", { x: middle, y: height - 4, "text-anchor": "middle" }, chart.x_title);
    const centre = (EDGE.top + height - EDGE.bottom) / 2;
    make("text", { transform: `translate(14 ${centre}) rotate(-90)`, "text-anchor": "middle" }, chart.y_title);
    for (const series of chart.series) {
      const steps = series.x.map((x, index) => `${index ? `H${placeX(x)}V` : `M${placeX(x)} `}${placeY(series.y[index])}`);
      make("path", { class: `curve ${series.colour}`, d: steps.join(""), "stroke-dasharray": DASHES[series.dash] });
    }
    head = make("line", { class: "head", y1: EDGE.top, y2: height - EDGE.bottom });
    show(at);
  }

  function show(seconds) {
    at = seconds;
    if (!head) return;
    head.style.display = seconds === null ? "none" : "";
    const x = placeX(seconds ?? 0);
    head.setAttribute("x1", x);
    head.setAttribute("x2", x);
  }

  new ResizeObserver(draw).observe(svg);
  return {
    // Draw `wanted`, whose time axis reaches to `seconds`.
    load(wanted, seconds) {
      chart = wanted;
      end = seconds || 1;
      svg.setAttribute("aria-label", chart.description);
      draw();
    },
    // Put the playhead at `seconds`; null takes it away.
    show,
  };
}
