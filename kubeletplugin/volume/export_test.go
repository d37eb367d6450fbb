package volume

import (
	"context"
	"sync/atomic"

	"github.com/longshore-csi/longshore/kubeletplugin/internal/fsgroup"
)

// WithChangeGroup returns the Config with another function that changes the group of files.
func (c Config) WithChangeGroup(f func(context.Context, fsgroup.Change, *atomic.Int64) (fsgroup.Result, error)) Config {
	c.changeGroup = f
	return c
}
