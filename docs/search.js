// Sphinx finds headings and index entries by the whole query, and pages that have all its words.
// Here it also finds, on each page, the section whose heading and entries share most with the
// query. Rare words count most.
if (typeof Search !== "undefined") {
  const { alltitles, indexentries, docnames, filenames, titles, terms } = Search._index;
  const stemmer = new Stemmer();
  const wordsOf = (text) => {
    const words = splitQuery(text.toLowerCase()).filter((word) => !stopwords.has(word));
    return [...new Set(words.map((word) => stemmer.stemWord(word)))];
  };
  const same = (some, others) => some.join() === others.join();
  const groups = {}; // conf.py makes one group of a section's entries, with the heading among them.
  for (const [entry, found] of Object.entries(indexentries))
    for (const [page, id, isMain] of found)
      if (isMain) (groups[[page, id]] ||= { page, texts: [] }).texts.push(wordsOf(entry));
  const sections = Object.entries(alltitles).flatMap(([title, found]) =>
    found.map(([page, id]) => {
      const heading = wordsOf(title);
      const ofSection = (group) =>
        group.page === page && group.texts.some((text) => same(text, heading));
      const { texts } = Object.values(groups).find(ofSection) || { texts: [heading] };
      const name = titles[page] === title ? title : `${titles[page]} > ${title}`;
      const hit = [docnames[page], name, id ? "#" + id : "", null, 0, filenames[page], "title"];
      return { texts, words: new Set(texts.flat()), hit };
    }),
  );
  const having = (word) => sections.filter(({ words }) => words.has(word)).length;
  const weigh = (words) =>
    words.reduce((sum, word) => sum + Math.log(1 + sections.length / (1 + having(word))), 0);
  const performSearch = Search._performSearch;
  Search._performSearch = (query, ...others) => {
    const asked = wordsOf(query).filter((word) => word in terms || having(word));
    const total = weigh(asked);
    const best = {};
    for (const { texts, words, hit } of sections) {
      const likeness = (text) =>
        weigh(asked.filter((word) => text.includes(word))) / Math.sqrt(total * weigh(text));
      const share = weigh(asked.filter((word) => words.has(word))) / total;
      const score = 20 * (share + Math.max(...texts.map(likeness)));
      if (share && !(best[hit[0]]?.[4] >= score)) best[hit[0]] = Object.assign([...hit], { 4: score });
    }
    const hits = performSearch(query, ...others);
    const left = hits.filter(([page, , , , , , kind]) => kind === "object" || !best[page]);
    return [...left, ...Object.values(best)].sort((one, other) => one[4] - other[4]);
  };
}
