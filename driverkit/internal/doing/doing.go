// Package doing lets long work say what it is doing, for the errors of calls that do not wait for its end.
package doing

import (
	"context"
	"sync/atomic"
)

// What is being done by one piece of work.
type What struct{ text atomic.Pointer[string] }

// String implements fmt.Stringer; "it" if the work has not said.
func (w *What) String() string {
	if text := w.text.Load(); text != nil {
		return *text
	}
	return "it"
}

type key struct{}

// Begin returns the context of a piece of work, and what that says with Say.
func Begin(ctx context.Context) (context.Context, *What) {
	w := &What{}
	return context.WithValue(ctx, key{}, w), w
}

// Say says what the work of a context does until the function is called that it returns.
func Say(ctx context.Context, text string) (end func()) {
	w, ok := ctx.Value(key{}).(*What)
	if !ok {
		return func() {}
	}
	before := w.text.Swap(&text)
	return func() { w.text.Store(before) }
}
