// Plays a recording and explains its steps. Needs playback.js and replay_chart.js in front of it.
// `props.value` is the JSON that ui/replay_view.py describes. Model text only ever becomes textContent.
const find = (part) => element.querySelector(`[data-part="${part}"]`);
const VERDICTS = {
  accepted: "✓ agrees",
  corrected: "✗ corrects",
  dropped: "dropped with it",
  cut: "behind the end",
  own: "its own",
  hidden: "not known",
};
const START_HINT = "Play it, or go step by step to see what the draft proposed and what the target made of it.";
const toggle = find("toggle");
const bar = find("bar");
const chart = makeReplayChart(find("chart"));
let recording = null;
let steps = []; // of the lane that is explained
let at = -1; // the step explained, -1 before the first
let held = false; // the panels show a moment, not the whole
let stepping = false;

const clock = makeClock((seconds, playing) => {
  if (!recording) return;
  const over = !playing && !stepping && seconds >= recording.seconds;
  bar.value = seconds;
  find("time").textContent = `${seconds.toFixed(2)} of ${recording.seconds.toFixed(2)} s`;
  toggle.textContent = playing ? "Pause" : "Play";
  element.dataset.seconds = seconds;
  element.dataset.playing = String(playing);
  if (!held) return;
  for (const lane of recording.lanes) showMoment(lane.element, over ? null : seconds);
  chart.show(over ? null : seconds);
  if (!stepping) explain(countSteps(seconds) - 1);
  if (over) held = false;
});

// How many steps of the explained lane had come at `seconds`.
function countSteps(seconds) {
  let low = 0;
  let high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle].seconds <= seconds) low = middle + 1;
    else high = middle;
  }
  return low;
}

function cell(text, className) {
  const made = document.createElement("td");
  made.textContent = text;
  made.className = className;
  return made;
}

function readable(text) {
  if (text === null) return "";
  return text === "" ? "(no text)" : text.replaceAll("\n", "↵").replaceAll("\t", "⇥");
}

function fill(part, cells) {
  const row = find(part);
  row.replaceChildren(row.firstElementChild, ...cells);
}

function explain(index) {
  if (index === at) return;
  at = index;
  const step = steps[at];
  element.dataset.step = at;
  find("back").disabled = at < 0;
  find("forward").disabled = at >= steps.length - 1;
  find("count").textContent = step ? `${at + 1} of ${steps.length} · ${step.seconds.toFixed(3)} s` : "";
  find("name").textContent = step ? step.title : "";
  find("sentence").textContent = step ? step.sentence : START_HINT;
  find("places").hidden = !step;
  const places = step ? step.places : [];
  fill("drafts", places.map((place) => cell(readable(place.draft), place.draft === null ? "" : `word ${place.fate}`)));
  fill("verdicts", places.map((place) => cell(VERDICTS[place.fate], `said ${place.fate}`)));
  fill("kept", places.map((place) => cell(readable(place.kept), place.kept === null ? "" : `word kept ${place.fate}`)));
  find("places").scrollLeft = 0;
}

function goTo(index) {
  clock.pause();
  held = true;
  stepping = true;
  explain(Math.max(-1, Math.min(steps.length - 1, index)));
  clock.seek(at < 0 ? 0 : steps[at].seconds);
  stepping = false;
}

function chooseLane(number) {
  steps = recording.lanes[number].steps;
  at = undefined;
  explain(held ? countSteps(clock.seconds) - 1 : -1);
}

toggle.addEventListener("click", () => {
  if (clock.playing) {
    clock.pause();
    return;
  }
  held = true;
  clock.play();
});
bar.addEventListener("input", () => {
  held = true;
  clock.seek(Number(bar.value));
});
find("back").addEventListener("click", () => goTo(at - 1));
find("forward").addEventListener("click", () => goTo(at + 1));
find("pace").addEventListener("change", () => clock.setRate(Number(find("pace").value)));
find("lane").addEventListener("change", () => chooseLane(Number(find("lane").value)));

function offerLanes() {
  const choices = recording.lanes.map((lane, number) => {
    const choice = document.createElement("option");
    choice.value = number;
    choice.textContent = lane.name;
    return choice;
  });
  find("lane").replaceChildren(...choices);
  find("lane-choice").hidden = choices.length < 2;
  const drafting = Math.max(0, recording.lanes.findIndex((lane) => lane.drafts));
  find("lane").value = drafting;
  chooseLane(drafting);
}

function drawLegend(series) {
  const entries = series.map((one) => {
    const entry = document.createElement("span");
    entry.textContent = one.name;
    entry.className = `${one.colour} ${one.dash}`;
    return entry;
  });
  find("chart-legend").replaceChildren(...entries);
}

function read() {
  const wanted = props.value ? JSON.parse(props.value) : null;
  if (wanted && recording && wanted.name === recording.name) return;
  recording = null;
  held = false;
  clock.load(wanted ? wanted.seconds : 0);
  find("frame").hidden = !wanted;
  recording = wanted;
  if (!wanted) return;
  find("title").textContent = wanted.title;
  find("about").textContent = wanted.about;
  find("chart-title").textContent = wanted.chart.title;
  drawLegend(wanted.chart.series);
  bar.max = wanted.seconds;
  offerLanes();
  clock.load(wanted.seconds);
  chart.load(wanted.chart, wanted.seconds);
  chart.show(null);
  element.dataset.recording = wanted.name;
}
watch("value", read);
read();
