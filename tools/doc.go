// Package tools pins the programs that check this repository; its go.mod names them as tools.
//
// They live in a module of their own so that no component's dependencies follow a linter's.
package tools
