// Sphinx' search wants pages with every word. Words that no page has are left out here, and while
// no page has all others, the most common one.
if (typeof Search !== "undefined") {
  const parse = Search._parseQuery;
  Search._parseQuery = (query) => {
    const [text, all, excluded, ...others] = parse(query);
    const pages = (word) => Search.performTermsSearch(new Set([word]), excluded).length;
    const words = [...all].filter(pages).sort((one, other) => pages(one) - pages(other));
    while (words.length > 1 && !Search.performTermsSearch(new Set(words), excluded).length)
      words.pop();
    return [text, words.length ? new Set(words) : all, excluded, ...others];
  };
}
