package apply

import (
	"context"
	"fmt"

	"k8s.io/client-go/rest"
)

// warnings are those that came with the answer to one request, whose context leads to them.
type warnings []error

type warningsKey struct{}

func (w *warnings) collect(ctx context.Context) context.Context {
	return context.WithValue(ctx, warningsKey{}, w)
}

// collector hands each warning to the request that it came with. Warnings of requests without a collector are logged.
type collector struct{}

var _ rest.WarningHandlerWithContext = collector{}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (collector) HandleWarningHeaderWithContext(ctx context.Context, code int, agent, text string) {
	if w, ok := ctx.Value(warningsKey{}).(*warnings); ok {
		*w = append(*w, fmt.Errorf("warning %d: %s", code, text))
		return
	}
	rest.WarningLogger{}.HandleWarningHeaderWithContext(ctx, code, agent, text)
}
