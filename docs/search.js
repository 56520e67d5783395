// Sphinx finds headings and index entries by the whole query, and pages that have all its words.
// Here it also finds, on each page, the section that shares most with the query: in its heading and
// its entries first, then in its text. Rare words count most.
if (typeof Search !== "undefined") {
  const { alltitles, indexentries, docnames, filenames, titles, terms } = Search._index;
  const stemmer = new Stemmer();
  const wordsOf = (text) => {
    const all = splitQuery(`${text} ${text.replaceAll("_", " ")}`.toLowerCase());
    const words = all.filter((word) => !stopwords.has(word));
    return [...new Set(words.map((word) => stemmer.stemWord(word)))];
  };
  const plain = (text) => splitQuery(text.toLowerCase()).join();
  // conf.py makes one group of a section's entries: the heading, those of the page, the text.
  const groups = {};
  for (const [entry, found] of Object.entries(indexentries))
    for (const [page, id, isMain] of found) {
      if (!isMain) continue;
      const group = (groups[[page, id]] ||= { page, entries: [], body: [] });
      if (entry.startsWith("~")) group.body = wordsOf(entry);
      else group.entries.push(entry);
    }
  const sections = Object.entries(alltitles).flatMap(([title, found]) =>
    found.map(([page, id]) => {
      const ofSection = (group) =>
        group.page === page && group.entries.some((entry) => plain(entry) === plain(title));
      const nothing = { entries: [title], body: [] };
      const { entries, body } = Object.values(groups).find(ofSection) || nothing;
      const texts = entries.map(wordsOf);
      const name = titles[page] === title ? title : `${titles[page]} > ${title}`;
      const hit = [docnames[page], name, id ? "#" + id : "", null, 0, filenames[page], "title"];
      return { texts, body: new Set(body), words: new Set(texts.flat()), hit };
    }),
  );
  const counts = new Map(); // In how many sections each word is.
  for (const { words, body } of sections)
    for (const word of new Set([...words, ...body])) counts.set(word, (counts.get(word) || 0) + 1);
  const weight = (word) => Math.log(1 + sections.length / (1 + (counts.get(word) || 0)));
  const weigh = (words) => words.reduce((sum, word) => sum + weight(word), 0);
  const performSearch = Search._performSearch;
  Search._performSearch = (query, ...others) => {
    const asked = wordsOf(query).filter((word) => word in terms || counts.has(word));
    const total = weigh(asked);
    const best = {};
    for (const { texts, body, words, hit } of sections) {
      const likeness = (text) =>
        weigh(asked.filter((word) => text.includes(word))) / Math.sqrt(total * weigh(text));
      const said = asked.filter((word) => body.has(word) && !words.has(word));
      const share = (weigh(asked.filter((word) => words.has(word))) + 0.75 * weigh(said)) / total;
      const score = 20 * (share + Math.max(...texts.map(likeness)));
      if (share && !(best[hit[0]]?.[4] >= score)) best[hit[0]] = Object.assign([...hit], { 4: score });
    }
    const hits = performSearch(query, ...others);
    const left = hits.filter(([page, , , , , , kind]) => kind === "object" || !best[page]);
    return [...left, ...Object.values(best)].sort((one, other) => one[4] - other[4]);
  };
}
