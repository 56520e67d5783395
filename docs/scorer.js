// Sphinx' own scores of search results, and what this site adds to them.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: ([page, title, anchor, description, score]) => {
    // Private names and measurements come last; headings in Troubleshooting are symptoms.
    if (/^[\w.]+\._/.test(title) || page === "performance") return score - 100;
    return page === "troubleshooting" ? score + (anchor ? 10 : 1) : score;
  },
};

// Below a result Sphinx shows the text at its id, and fails where there is none. Entries of the
// index have none: for them, show the innermost section.
const textAt = Search.htmlToText;
Search.htmlToText = (html, anchor) =>
  textAt(html, anchor?.replace(/^#index-\d+$/, "section:has($&):not(:has(section $&))"));

// Sphinx finds pages that have all words of a query. Of a message that was pasted, no page has all.
// So headings and what conf.py puts into the index are ranked by how many words they share with it.
const searchAllWords = Search._performSearch;
Search._performSearch = (query, ...rest) => {
  const { alltitles, indexentries, docnames, filenames, titles } = Search._index;
  const stemmer = new Stemmer();
  const ignored = new Set(stopwords);
  const stems = (text) =>
    new Set(
      splitQuery(text.toLowerCase())
        .filter((word) => !ignored.has(word))
        .map((word) => stemmer.stemWord(word)),
    );

  const candidates = [];
  for (const [title, places] of Object.entries(alltitles))
    for (const [file, id] of places) candidates.push({ title, file, id, words: stems(title) });
  for (const [title, places] of Object.entries(indexentries))
    for (const [file, id, isMain] of places)
      if (isMain) candidates.push({ title, file, id, words: stems(title) });

  const wanted = stems(query);
  const weights = new Map();
  for (const word of wanted) {
    const count = candidates.filter(({ words }) => words.has(word)).length;
    weights.set(word, count ? Math.log(1 + candidates.length / count) : 0);
  }
  const total = [...weights.values()].reduce((sum, weight) => sum + weight, 0);

  for (const candidate of candidates) {
    candidate.shared = [...candidate.words].filter((word) => weights.get(word));
    candidate.share = candidate.shared.reduce((sum, word) => sum + weights.get(word), 0) / total;
  }
  const least = Math.max(0.25, 0.6 * Math.max(...candidates.map(({ share }) => share || 0)));

  const results = searchAllWords(query, ...rest);
  for (const { title, file, id, words, shared, share } of candidates) {
    if (!(share >= least)) continue;
    const result = [
      docnames[file],
      titles[file] === title ? title : `${titles[file]} > ${title}`,
      id ? `#${id}` : "",
      null,
      40 * share + (10 * shared.length) / words.size,
      filenames[file],
      SearchResultKind.title,
    ];
    result[4] = Scorer.score(result);
    results.push(result);
  }
  return results.sort(_orderResultsByScoreThenName);
};
