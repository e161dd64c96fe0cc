"""Whom a device believes: signatures, digests, roots.

    bytes from anywhere ──► signing.verify ──► state.TrustedState ──► what may run
                                 ▲                   │
                            root.Root (pinned, versioned: author, deployer and engine keys with thresholds)

* `digests`: `sha256:<hex>` of bytes and files, and a writer that measures what passes;
* `keys`: Ed25519 signing keys and their files;
* `signing`: signatures over bytes, separated by message type, with thresholds of distinct keys;
* `root`: making, checking and rotating roots;
* `state`: the one pure class in which bytes become trusted. All IO stays outside it.

The design is that of The Update Framework (https://theupdateframework.github.io/specification/latest/), cut
to what a task needs: the *author* role says what a task version is, the *deployer* role says which versions
a device runs now, and stands for TUF's timestamp and snapshot in one.
"""
