package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// A loop that succeeds at the second attempt.
func ExampleController() {
	var attempts atomic.Int32
	done := make(chan struct{})
	loop, err := reconcile.New(reconcile.Config[string]{
		Name:    "volumes",
		Workers: 4,
		Retry:   flagset.Retry{Start: time.Millisecond, Max: time.Second},
		Reconcile: func(_ context.Context, volume string) (reconcile.Result, error) {
			if attempts.Add(1) == 1 {
				return reconcile.Result{}, errors.New("not yet")
			}
			fmt.Println("reconciled", volume)
			close(done)
			return reconcile.Result{}, nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-done
		cancel()
	}()
	loop.Add("pvc-1")
	loop.Add("pvc-1") // waits already
	if err := loop.Run(ctx); err != nil {
		fmt.Println(err)
	}
	// Output: reconciled pvc-1
}
