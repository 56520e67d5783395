// Sphinx finds headings and index entries by the whole query, and pages that have all its words.
// Here it also finds, on each page, the two sections that share most with the query: in their
// heading first, then in their text. Rare words count most.
if (typeof Search !== "undefined") {
  const { alltitles, indexentries, docnames, filenames, titles, terms } = Search._index;
  const stemmer = new Stemmer();
  const names = { fp16: "float16", bf16: "bfloat16", fp32: "float32", gpus: "gpu", cpus: "cpu" };
  const same = new Map(Object.entries(names));
  const wordsOf = (text) => {
    const words = splitQuery(text.toLowerCase()).filter((word) => !stopwords.has(word));
    return [...new Set(words.map((word) => stemmer.stemWord(same.get(word) || word)))];
  };
  // Of names, too: `get_scaled_loss` and its three words.
  const partsOf = (text) =>
    wordsOf(`${text} ${text.replaceAll("_", " ").replace(/([a-z])([A-Z])/g, "$1 $2")}`);
  // conf.py makes an entry of each section's text, which begins with a ~.
  const texts = {};
  for (const [entry, found] of Object.entries(indexentries))
    if (entry.startsWith("~")) for (const [page, id] of found) texts[[page, id]] = partsOf(entry);
  const sections = Object.entries(alltitles).flatMap(([title, found]) =>
    found.map(([page, id]) => {
      const name = titles[page] === title ? title : `${titles[page]} > ${title}`;
      const hit = [docnames[page], name, id ? "#" + id : "", null, 0, filenames[page], "title"];
      const body = new Set([...partsOf(title), ...(texts[[page, id]] || [])]);
      return { words: wordsOf(title), body, hit };
    }),
  );
  const counts = new Map(); // In how many sections each word is.
  for (const { body } of sections)
    for (const word of body) counts.set(word, (counts.get(word) || 0) + 1);
  const weight = (word) => Math.log(1 + sections.length / (1 + (counts.get(word) || 0)));
  const weigh = (words) => words.reduce((sum, word) => sum + weight(word), 0);
  const performSearch = Search._performSearch;
  Search._performSearch = (query, ...others) => {
    const known = (word) => word in terms || counts.has(word);
    // A class whole, where a page names it: loss and scale are in most headings.
    const isClass = (name) => !name.includes("_") && wordsOf(name).every(known);
    const askedOf = (name) => (isClass(name) ? wordsOf(name) : partsOf(name));
    const asked = [...new Set(splitQuery(query).flatMap(askedOf))].filter(known);
    const total = weigh(asked);
    const best = {}; // By page.
    for (const { words, body, hit } of sections) {
      if (hit[0].startsWith("api/")) continue; // Sphinx finds them by the names that they have.
      const said = weigh(asked.filter((word) => words.includes(word)));
      const more = weigh(asked.filter((word) => body.has(word) && !words.includes(word)));
      const likeness = said && said / Math.sqrt(total * weigh(words));
      const score = 20 * ((said + 0.75 * more) / total + likeness);
      if (said || more) (best[hit[0]] ||= []).push(Object.assign([...hit], { 4: score }));
    }
    const hits = performSearch(query, ...others);
    const left = hits.filter(([page, , , , , , kind]) => kind === "object" || !best[page]);
    const two = (found) => found.sort((one, other) => other[4] - one[4]).slice(0, 2);
    const all = [...left, ...Object.values(best).flatMap(two)];
    return all.sort((one, other) => one[4] - other[4]);
  };
}
