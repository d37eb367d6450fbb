package registration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"
)

// Generation identifies one registration socket during its life. A socket that
// is re-created at the same path has another Generation.
type Generation struct {
	// Path of the registration socket.
	Path string
	// Serial counts the sockets this process has seen; it is never reused,
	// unlike device and inode.
	Serial uint64
	// Identity is what the file system says about the socket.
	Identity Identity
}

// Identity distinguishes two sockets at one path by what stat returns, links followed.
type Identity struct {
	// Device and Inode of the socket.
	Device, Inode uint64
	// Modified is the time of modification in nanoseconds since 1970, which
	// for a socket is the time it was bound.
	Modified int64
}

// Plugin is a CSI driver that asks to be registered.
type Plugin struct {
	// Name of the driver, valid by drivername.Validate.
	Name string
	// Endpoint is the driver's own socket: an absolute path or unix:///path.
	Endpoint string
	// Version is the one that is used of those that the registrar offers, for
	// instance 1.0.0.
	Version string
	// RequiresPublishPod is set when the registrar asks for pod information in
	// NodePublishVolume. A registrar that does not know the question means no.
	RequiresPublishPod bool
	// Generation is the registration socket that this came from.
	Generation Generation
}

// Handler does what a registration is for. Calls for one driver name never
// overlap; calls for several drivers do.
type Handler interface {
	// Register takes the driver into use. It is called again, after a delay,
	// when it fails, and then leaves nothing behind, nor an earlier
	// registration of that name. ctx ends when the socket is removed; Deregister
	// follows if that made it fail. A driver of that name may be registered
	// already, by an earlier generation of the same socket or by a lower
	// version: the new one takes its place, and no Deregister follows for the old.
	Register(ctx context.Context, p Plugin) error
	// Deregister takes the driver out of use, unless another generation has
	// registered the name since; the Manager checks that.
	Deregister(ctx context.Context, p Plugin)
}

// Config says what to watch. Dir and Handler are required.
type Config struct {
	// Dir is watched with all its directories, and created when missing: the
	// node's <root>/plugins_registry. Names that begin with a dot are ignored.
	Dir string
	// ExtraDirs are watched as well, for registrars that use an older place.
	ExtraDirs []string
	// Handler registers each driver.
	Handler Handler
	// Inotify is an inotify instance to share with other Managers; nil for one of its own.
	Inotify *Inotify
	// Rescan is how often the directories are read although no event came, in
	// case one was lost. Default 10 s.
	Rescan time.Duration
	// DialTimeout bounds the connection to a socket. Default 10 s.
	DialTimeout time.Duration
	// InfoTimeout bounds GetInfo and GetCSIDriverInfo each. Default 1 s.
	InfoTimeout time.Duration
	// NotifyTimeout bounds NotifyRegistrationStatus. Default 5 s.
	NotifyTimeout time.Duration
	// Dial replaces the connection to a socket, for tests.
	Dial func(ctx context.Context, path string) (net.Conn, error)
}

const (
	defaultRescan        = 10 * time.Second
	defaultDialTimeout   = 10 * time.Second
	defaultInfoTimeout   = time.Second
	defaultNotifyTimeout = 5 * time.Second
)

func (cfg Config) withDefaults() Config {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&cfg.Rescan, defaultRescan},
		{&cfg.DialTimeout, defaultDialTimeout},
		{&cfg.InfoTimeout, defaultInfoTimeout},
		{&cfg.NotifyTimeout, defaultNotifyTimeout},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, path string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	}
	return cfg
}

func (cfg Config) validate() error {
	var errs []error
	for _, dir := range append([]string{cfg.Dir}, cfg.ExtraDirs...) {
		if !filepath.IsAbs(dir) {
			errs = append(errs, fmt.Errorf("registration directory %q: must be an absolute path", dir))
		}
	}
	if cfg.Handler == nil {
		errs = append(errs, errors.New("registration handler: must not be nil"))
	}
	for name, d := range map[string]time.Duration{
		"rescan interval": cfg.Rescan, "dial timeout": cfg.DialTimeout,
		"info timeout": cfg.InfoTimeout, "notify timeout": cfg.NotifyTimeout,
	} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("%s %v: must not be negative", name, d))
		}
	}
	return errors.Join(errs...)
}
