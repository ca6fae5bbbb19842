"""What is wrong with the looks of a page, found in the page itself."""

# Elements that are cut off at the right or have to be scrolled sideways.
CUT = """() => {
    const wide = (e) => e.scrollWidth > e.clientWidth + 1;
    const found = [...document.querySelectorAll('.scroll, .runs, .picture, .card')].filter(wide);
    if (document.documentElement.scrollWidth > innerWidth) found.push(document.documentElement);
    return found.map((e) => `${e.tagName} ${e.className} ${e.getAttribute('aria-label') ?? ''}`);
}"""

# Texts that stand out from their ground by less than the 4.5 that WCAG 2 asks for.
FAINT = """() => {
    const parsed = (text) => {
        const numbers = (text.match(/-?[\\d.]+(e-?\\d+)?/g) ?? [0, 0, 0, 0]).map(Number);
        const scale = text.startsWith('color(') ? 255 : 1;
        return [...numbers.slice(0, 3).map((n) => n * scale), numbers[3] ?? 1];
    };
    const over = ([r, g, b, a], ground) => [r, g, b].map((n, i) => n * a + ground[i] * (1 - a));
    const ground = (element) => {
        if (!element) return [255, 255, 255];
        const own = parsed(getComputedStyle(element).backgroundColor);
        return over(own, ground(element.parentElement));
    };
    const light = (colour) => {
        const linear = (n) => (n <= 0.03928 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4);
        const [r, g, b] = colour.map((n) => linear(n / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const found = new Set();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const [element, text] = [node.parentElement, node.textContent.trim()];
        if (!text || !element.checkVisibility()) continue;
        const below = ground(element);
        const ink = over(parsed(getComputedStyle(element).color), below);
        const [dim, bright] = [light(ink), light(below)].sort((a, b) => a - b);
        const contrast = (bright + 0.05) / (dim + 0.05);
        if (contrast < 4.5) found.add(`${text.slice(0, 30)}: ${contrast.toFixed(2)}`);
    }
    return [...found];
}"""
