// Refreshes the part of a page that says how often it wants to be, copies what is to be copied, and hides icons.
(() => {
  "use strict";

  const isBusy = (part) => document.hidden || part.contains(document.activeElement) || String(getSelection()) !== "";

  const refresh = async () => {
    const part = document.querySelector("[data-refresh]");
    const seconds = Number(part?.dataset.refresh);
    if (!seconds) return;
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
    // Not under the hands of somebody who has tabbed to a button or is selecting text.
    if (!isBusy(part)) {
      try {
        const answer = await fetch(location.href, { credentials: "same-origin", headers: { "X-Refresh": "1" } });
        if (answer.ok && !answer.redirected) {
          const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(part.id);
          if (fresh && !isBusy(part)) part.replaceWith(fresh);
        }
      } catch {
        // The server restarts or the network is away: the next round will tell.
      }
    }
    refresh();
  };

  // The theme's icons are words in a font: a screen reader would read "arrow_back" out.
  const hideIcons = () => {
    for (const icon of document.querySelectorAll(".material-symbols-outlined:not([aria-hidden])")) {
      const word = icon.textContent.trim();
      const control = icon.closest("button, a");
      // A button that has nothing but its icon is named by it.
      if (control && control.textContent.trim() === word && !control.title) {
        control.setAttribute("aria-label", word.replaceAll("_", " "));
      }
      icon.setAttribute("aria-hidden", "true");
    }
  };

  const copy = async (button) => {
    const field = document.getElementById(button.dataset.copy);
    field.select();
    try {
      await navigator.clipboard.writeText(field.value);
    } catch {
      document.execCommand("copy"); // pages without https have no clipboard of their own
    }
    button.textContent = "Copied";
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(button);
  });
  document.addEventListener("DOMContentLoaded", () => {
    hideIcons();
    new MutationObserver(hideIcons).observe(document.body, { childList: true, subtree: true });
    refresh();
  });
})();
