// Package poll waits for what others have to provide, such as an API server that answers.
package poll

import (
	"context"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// Until calls try, with this pause in between, until it returns nil, or ctx ends: then it returns an error. It logs the message with the error of try whenever that
// differs from the one before.
func Until(ctx context.Context, pause time.Duration, message string, try func(ctx context.Context) error) error {
	said := ""
	return wait.PollUntilContextCancel(ctx, pause, true, func(ctx context.Context) (done bool, _ error) {
		err := try(ctx)
		if err == nil {
			return true, nil
		}
		if why := strings.Join(strings.Fields(err.Error()), " "); why != said && ctx.Err() == nil {
			said = why
			klog.FromContext(ctx).Info(message, logging.KeyReason, why)
		}
		return false, nil
	})
}
