package snapshotapi

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// Resources of group snapshots.
const (
	groupSnapshots        = "volumegroupsnapshots"
	groupSnapshotContents = "volumegroupsnapshotcontents"
	groupSnapshotClasses  = "volumegroupsnapshotclasses"
)

// groupVersions returns the versions of group snapshots, the preferred one first. v1 and v1beta2 have the same fields.
func groupVersions() []string { return []string{"v1", "v1beta2", betaVersion} }

// Served implements Client.
func (c *client) Served(ctx context.Context) (version string, ok bool, err error) {
	for i, version := range groupVersions() {
		resources, err := discover(ctx, c.groups[i])
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return "", false, fmt.Errorf("ask for the resources of %s/%s: %w", GroupSnapshotGroup, version, err)
		}
		if resources[groupSnapshots] && resources[groupSnapshotContents] && resources[groupSnapshotClasses] {
			c.current.Store(int32(i)) //nolint:gosec // there are three
			return version, true, nil
		}
	}
	return "", false, nil
}

// discover returns the resources that the server has in the group and version of a client. A hardened cluster may refuse that to service accounts: then a list
// of one object of each kind says it, which the roles of the components allow.
func discover(ctx context.Context, client rest.Interface) (map[string]bool, error) {
	gv := client.APIVersion()
	list := &metav1.APIResourceList{}
	err := client.Get().AbsPath("/apis", gv.Group, gv.Version).Do(ctx).Into(list)
	if apierrors.IsForbidden(err) {
		return listed(ctx, client)
	}
	if err != nil {
		return nil, err
	}
	resources := map[string]bool{}
	for _, resource := range list.APIResources {
		resources[resource.Name] = true
	}
	return resources, nil
}

// listed returns which of the kinds can be listed.
func listed(ctx context.Context, client rest.Interface) (map[string]bool, error) {
	resources := map[string]bool{}
	for _, name := range []string{groupSnapshots, groupSnapshotContents, groupSnapshotClasses} {
		err := client.Get().Resource(name).Param("limit", "1").Do(ctx).Error()
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		resources[name] = err == nil
	}
	return resources, nil
}

// served implements rest.Interface by the client of the version that is in use.
type served struct{ *client }

var _ rest.Interface = served{}

func (s served) now() rest.Interface { return s.groups[s.current.Load()] }

// GetRateLimiter implements rest.Interface.
func (s served) GetRateLimiter() flowcontrol.RateLimiter { return s.now().GetRateLimiter() }

// Verb implements rest.Interface.
func (s served) Verb(verb string) *rest.Request { return s.now().Verb(verb) }

// Post implements rest.Interface.
func (s served) Post() *rest.Request { return s.now().Post() }

// Put implements rest.Interface.
func (s served) Put() *rest.Request { return s.now().Put() }

// Patch implements rest.Interface.
func (s served) Patch(pt types.PatchType) *rest.Request { return s.now().Patch(pt) }

// Get implements rest.Interface.
func (s served) Get() *rest.Request { return s.now().Get() }

// Delete implements rest.Interface.
func (s served) Delete() *rest.Request { return s.now().Delete() }

// APIVersion implements rest.Interface.
func (s served) APIVersion() schema.GroupVersion { return s.now().APIVersion() }
