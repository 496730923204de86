// SPDX-License-Identifier: Apache-2.0
// A copy button on every code block.
for (const block of document.querySelectorAll(".block")) {
  const button = document.createElement("button");
  button.textContent = "copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.querySelector("code").textContent);
    button.textContent = "copied";
    setTimeout(() => (button.textContent = "copy"), 1500);
  });
  block.append(button);
}
