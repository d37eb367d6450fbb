// Package broken has an API with faults.
package broken

import (
	secret "example.com/m/internal/hidden"
	"example.com/m/shown"
)

// Good has a comment.
type Good struct {
	// Field is shown.
	Field shown.Type
	own   secret.Type
}

type Bare interface {
	// Hide takes a type that importers cannot name.
	Hide(secret.Type)
	Say()
}

// Limit is a constant.
const Limit = 3

func (Good) Open() error { return nil }

func quiet() {}
