// Shows the words of a comparison. `props.value` is the JSON that ui/compare_verdict.py describes.
// Model text only ever becomes textContent.
const find = (part) => element.querySelector(`[data-part="${part}"]`);

function make(tag, text, className) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function list(part, texts) {
  find(part).replaceChildren(...texts.map((text) => make("li", text)));
  find(part).hidden = texts.length === 0;
}

function excerpt(one) {
  const line = document.createElement("div");
  line.className = "excerpt";
  const text = document.createElement("p");
  const mark = make("mark", one.id === null ? one.token : one.token || "(no text)");
  mark.title = one.id === null ? "" : `id ${one.id}`;
  if (one.id === null) mark.className = "ended";
  text.append(make("span", one.before), mark, make("span", one.after));
  line.append(make("h4", one.lane), text);
  return line;
}

function row(one) {
  const line = document.createElement("tr");
  const name = make("th", one.name);
  name.scope = "row";
  line.append(name, make("td", one.left), make("td", one.right));
  if (one.left !== one.right) line.className = "differs";
  return line;
}

function read() {
  if (!props.value) return;
  const report = JSON.parse(props.value);
  const empty = !report.headline && report.warnings.length === 0;
  find("card").hidden = empty;
  find("headline").textContent = report.headline;
  find("headline").hidden = !report.headline;
  find("card").dataset.tone = report.tone;
  list("warnings", report.warnings);
  list("sentences", report.sentences);
  list("notes", report.notes);
  find("excerpts").replaceChildren(...report.excerpts.map(excerpt));
  find("reason").textContent = report.reason;
  find("reason").hidden = !report.reason;
  find("measured").hidden = report.rows.length === 0;
  find("lanes").replaceChildren(...["", ...report.lanes].map((lane) => make("th", lane)));
  find("rows").replaceChildren(...report.rows.map(row));
}
watch("value", read);
read();
