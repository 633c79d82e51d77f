// Shows the big numbers. `props.value` is the JSON that ui/numbers.py describes.
const list = element.querySelector('[data-part="numbers"]');
const cells = new Map();

function makeCell(key) {
  const cell = document.createElement("div");
  const value = document.createElement("dd");
  const label = document.createElement("dt");
  cell.dataset.key = key;
  cell.append(value, label);
  list.append(cell);
  cells.set(key, { cell, value, label });
  return cells.get(key);
}

function read() {
  if (!props.value) return;
  const numbers = JSON.parse(props.value);
  const wanted = new Set(numbers.map((number) => number.key));
  for (const [key, { cell }] of cells) {
    if (wanted.has(key)) continue;
    cell.remove();
    cells.delete(key);
  }
  for (const number of numbers) {
    const { cell, value, label } = cells.get(number.key) ?? makeCell(number.key);
    value.textContent = number.value;
    label.textContent = number.label;
    cell.title = number.tip;
    cell.dataset.tone = number.tone;
  }
}
watch("value", read);
read();
