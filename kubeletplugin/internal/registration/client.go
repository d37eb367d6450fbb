package registration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/util/version"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/longshore-csi/longshore/csikit/csiregistration"
	"github.com/longshore-csi/longshore/csikit/drivername"
)

// errUnreachable marks a socket on which no registrar listens, not yet or no more.
var errUnreachable = errors.New("no registrar answers")

// errConnectionUsed stops gRPC from connecting a second time: the listener
// may then be another registrar, with another answer.
var errConnectionUsed = errors.New("connection to the registrar has ended")

// registrar is the one connection of an attempt to register.
type registrar struct {
	conn          *grpc.ClientConn
	gen           Generation
	infoTimeout   time.Duration
	notifyTimeout time.Duration
}

// connect dials the registration socket. An error wraps errUnreachable.
func connect(ctx context.Context, cfg Config, gen Generation) (*registrar, error) {
	dialCtx, cancel := context.WithTimeout(ctx, cfg.DialTimeout)
	defer cancel()
	raw, err := cfg.Dial(dialCtx, gen.Path)
	if err != nil {
		return nil, fmt.Errorf("connect to registration socket %q: %w: %w", gen.Path, errUnreachable, err)
	}
	var used atomic.Bool
	conn, err := grpc.NewClient("passthrough:///registrar",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, errConnectionUsed
			}
			return raw, nil
		}))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to registration socket %q: %w", gen.Path, err), raw.Close())
	}
	return &registrar{conn: conn, gen: gen, infoTimeout: cfg.InfoTimeout, notifyTimeout: cfg.NotifyTimeout}, nil
}

func (r *registrar) close() { _ = r.conn.Close() } // every outcome is already known

// plugin asks for the driver behind the socket. The error is reported to the
// registrar if it can be reached.
func (r *registrar) plugin(ctx context.Context) (Plugin, error) {
	info, err := r.info(ctx)
	if err != nil {
		return Plugin{}, err
	}
	p, err := pluginFrom(info, r.gen)
	if err != nil {
		return Plugin{}, err
	}
	return withOptions(p, r.options(ctx)), nil
}

func (r *registrar) info(ctx context.Context) (*registerapi.PluginInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, r.infoTimeout)
	defer cancel()
	info, err := registerapi.NewRegistrationClient(r.conn).GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("get plugin info from registration socket %q: %w", r.gen.Path, err)
	}
	return info, nil
}

// options asks for the driver's options. Any error means none: registrars of
// other projects do not know the service.
func (r *registrar) options(ctx context.Context) *csiregistration.CSIDriverInfo {
	ctx, cancel := context.WithTimeout(ctx, r.infoTimeout)
	defer cancel()
	info, err := csiregistration.NewCSIRegistrationClient(r.conn).GetCSIDriverInfo(ctx, &csiregistration.CSIDriverInfoRequest{})
	if err != nil {
		return nil
	}
	return info
}

// notify reports the result of the registration to the registrar; nil means success.
func (r *registrar) notify(ctx context.Context, problem error) error {
	ctx, cancel := context.WithTimeout(ctx, r.notifyTimeout)
	defer cancel()
	status := &registerapi.RegistrationStatus{PluginRegistered: problem == nil}
	if problem != nil {
		status.Error = strings.ToValidUTF8(problem.Error(), "?")
	}
	if _, err := registerapi.NewRegistrationClient(r.conn).NotifyRegistrationStatus(ctx, status); err != nil {
		return fmt.Errorf("notify registration socket %q: %w", r.gen.Path, err)
	}
	return nil
}

// pluginFrom checks what a registrar said and puts it into our terms.
func pluginFrom(info *registerapi.PluginInfo, gen Generation) (Plugin, error) {
	if info.GetType() != registerapi.CSIPlugin {
		return Plugin{}, fmt.Errorf("plugin %q at %q: no handler for plugin type %q, only for %q",
			info.GetName(), gen.Path, info.GetType(), registerapi.CSIPlugin)
	}
	if err := drivername.Validate(info.GetName()); err != nil {
		return Plugin{}, err
	}
	chosen, err := chooseVersion(info.GetSupportedVersions())
	if err != nil {
		return Plugin{}, fmt.Errorf("CSI driver %q: %w", info.GetName(), err)
	}
	p := Plugin{
		Name:       info.GetName(),
		Endpoint:   info.GetEndpoint(),
		Version:    chosen.String(),
		Generation: gen,
	}
	if p.Endpoint == "" {
		p.Endpoint = gen.Path
	}
	if !filepath.IsAbs(strings.TrimPrefix(p.Endpoint, "unix://")) {
		return Plugin{}, fmt.Errorf("CSI driver %q: endpoint %q: must be an absolute path", p.Name, p.Endpoint)
	}
	return p, nil
}

// withOptions applies what the registrar answered beyond PluginInfo. An
// endpoint that could not be dialled is not taken.
func withOptions(p Plugin, info *csiregistration.CSIDriverInfo) Plugin {
	p.RequiresPublishPod = info.GetOptions().GetRequiresPublishPod()
	if endpoint := info.GetCsiEndpoint(); filepath.IsAbs(strings.TrimPrefix(endpoint, "unix://")) {
		p.Endpoint = endpoint
	}
	return p
}

// chooseVersion returns the highest offered version that this node can use.
// The rule is the kubelet's: versions above 1.x are ignored, and of the others
// the highest must be 1.x.
func chooseVersion(offered []string) (*version.Version, error) {
	if len(offered) == 0 {
		return nil, errors.New("supported versions: must not be empty")
	}
	var highest *version.Version
	for _, text := range offered {
		v, err := version.ParseGeneric(text)
		if err != nil || v.Major() > 1 {
			continue
		}
		if highest == nil || highest.LessThan(v) {
			highest = v
		}
	}
	if highest == nil || highest.Major() != 1 {
		return nil, fmt.Errorf("supported versions %q: one of them must be 1.x", offered)
	}
	return highest, nil
}
