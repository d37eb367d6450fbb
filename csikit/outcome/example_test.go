package outcome_test

import (
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikit/outcome"
)

func ExampleOf() {
	err := fmt.Errorf("create volume %q: %w", "data", status.Error(codes.DeadlineExceeded, "no answer"))
	fmt.Println(outcome.Of(err), outcome.Of(err).MayStillRun())
	fmt.Println(outcome.Message(err))
	// Output:
	// uncertain true
	// no answer
}
