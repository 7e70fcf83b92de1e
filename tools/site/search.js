// Search over the headings of all pages; `headings` has [text, page, address] of each. Without scripts the site works
// as well, and has no search. `?find=WORDS` behind an address begins with one.
const nav = document.querySelector("nav"), field = nav.querySelector("input"), found = nav.querySelector(".found");
const root = document.body.dataset.root;
let at = -1;

function rank(text, words) { // lower is better, -1: not all words are there
  let sum = 0;
  for (const word of words) {
    const place = text.indexOf(word);
    if (place < 0) { return -1; }
    sum += place === 0 ? 0 : /\w/.test(text[place - 1]) ? 2 : 1;
  }
  return sum * 1000 + text.length;
}

function search() {
  const words = field.value.toLowerCase().split(/\s+/).filter(word => word);
  const list = [];
  if (words.length) {
    headings.forEach(([text, page, address], i) => {
      const own = rank(text.toLowerCase(), words);
      if (own >= 0) { list.push({ own, i, text, page, address }); }
    });
  }
  list.sort((a, b) => a.own - b.own || a.i - b.i);
  found.replaceChildren(...list.slice(0, 20).map(({ text, page, address }) => {
    const item = document.createElement("li"), link = document.createElement("a");
    link.href = root + address;
    link.textContent = text;
    link.append(Object.assign(document.createElement("small"), { textContent: page }));
    item.append(link);
    return item;
  }));
  if (words.length && !list.length) { found.textContent = "no heading has that"; }
  found.hidden = !words.length;
  at = -1;
}

function choose(next) {
  const links = found.querySelectorAll("a");
  if (!links.length) { return; }
  links[at]?.classList.remove("at");
  at = (next + links.length) % links.length;
  links[at].classList.add("at");
  links[at].scrollIntoView({ block: "nearest" });
}

field.addEventListener("input", search);
field.addEventListener("keydown", event => {
  if (event.key === "ArrowDown") { choose(at + 1); event.preventDefault(); }
  else if (event.key === "ArrowUp") { choose(at < 0 ? -1 : at - 1); event.preventDefault(); }
  else if (event.key === "Enter") { found.querySelectorAll("a")[Math.max(at, 0)]?.click(); }
  else if (event.key === "Escape") { field.value = ""; search(); }
});
document.addEventListener("keydown", event => {
  if (event.key === "/" && document.activeElement !== field && !event.ctrlKey && !event.metaKey) {
    field.focus();
    event.preventDefault();
  }
});
const asked = new URLSearchParams(location.search).get("find");
if (asked) {
  field.value = asked;
  search();
}
if (matchMedia("(max-width: 56rem)").matches) { nav.querySelector("details").open = false; }
if (!asked) { nav.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" }); }
