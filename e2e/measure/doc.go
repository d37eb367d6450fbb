// Package measure has the figures of the benchmarks in e2e/bench: times as a watcher of the API server sees them, and writes as its audit log has them. It is a
// package of its own so that `make test` runs its tests, and compiles no benchmark.
package measure
