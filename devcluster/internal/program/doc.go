// Package program holds the tests of the whole program: devcluster is built and run as a user runs it, with real processes,
// mounts and signals. It has nothing to import; what one package promises is tested beside its code.
package program
