// Package bootstrap writes what the components of a development cluster find in the API server: their rights, the CSIDriver
// objects and StorageClasses of the drivers, and the definitions of the kinds of snapshots. It waits until these are served, and until the nodes have
// registered the drivers.
package bootstrap

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/devcluster/apply"
)

//go:embed objects/*.yaml
var objects embed.FS

// Driver is what the objects say of a driver.
type Driver struct {
	// Info is what the driver answers.
	Info csiclient.Info
	// Reference says that this is the reference driver, which has a CSIDriver object of its own, and whose StorageClasses its user makes.
	Reference bool
	// File has the CSIDriver object. Empty: it is made from the capabilities of the driver.
	File string
	// ClassFile has the StorageClasses. Empty: one with the name of the driver, if the driver creates volumes.
	ClassFile string
}

// csiDriver returns the CSIDriver object.
func (d Driver) csiDriver() (*unstructured.Unstructured, error) {
	if d.File != "" {
		o, err := ReadCSIDriver(d.File)
		if err == nil && o.GetName() != d.Info.Name {
			err = fmt.Errorf("%s: the CSIDriver object is named %q, but the driver answers that its name is %q", d.File, o.GetName(), d.Info.Name)
		}
		return o, err
	}
	name := "foreigndriver.yaml"
	if d.Reference {
		name = "csidriver.yaml"
	}
	list, err := d.embedded(name)
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// storageClasses returns the StorageClasses, if any.
func (d Driver) storageClasses() ([]*unstructured.Unstructured, error) {
	if d.ClassFile == "" {
		if d.Reference || !d.Info.Controller[csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME] {
			return nil, nil
		}
		return d.embedded("storageclass.yaml")
	}
	list, err := ReadStorageClasses(d.ClassFile)
	for _, o := range list {
		if provisioner, _, _ := unstructured.NestedString(o.Object, "provisioner"); provisioner != d.Info.Name {
			err = errors.Join(err, fmt.Errorf("%s: %s has the provisioner %q, but the driver answers that its name is %q", d.ClassFile, apply.Name(o), provisioner, d.Info.Name))
		}
	}
	return list, err
}

// ReadCSIDriver reads a file that has one CSIDriver object and nothing else.
func ReadCSIDriver(file string) (*unstructured.Unstructured, error) {
	list, err := read(file, "CSIDriver")
	if err != nil {
		return nil, err
	}
	if len(list) != 1 {
		return nil, fmt.Errorf("%s: must have one object of storage.k8s.io/v1 CSIDriver, and has %d", file, len(list))
	}
	return list[0], nil
}

// ReadStorageClasses reads a file that has StorageClasses and nothing else.
func ReadStorageClasses(file string) ([]*unstructured.Unstructured, error) {
	return read(file, "StorageClass")
}

// read reads a file that has objects of a kind of storage.k8s.io/v1 and nothing else.
func read(file, kind string) ([]*unstructured.Unstructured, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	list, err := apply.Decode(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, o := range list {
		if o.GetKind() != kind || o.GetAPIVersion() != "storage.k8s.io/v1" {
			return nil, fmt.Errorf("%s: must have objects of storage.k8s.io/v1 %s and nothing else, and has %s", file, kind, apply.Name(o))
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s: must have an object of storage.k8s.io/v1 %s", file, kind)
	}
	return list, nil
}

// embedded returns the objects of a file of this package, with the values of the driver.
func (d Driver) embedded(name string) ([]*unstructured.Unstructured, error) {
	data, err := objects.ReadFile("objects/" + name)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	list, err := apply.Decode([]byte(d.fill(string(data))))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return list, nil
}

// fill replaces the placeholders of the driver in the objects. The scheduler waits for capacities only of a driver that reports them.
func (d Driver) fill(text string) string {
	announces := func(c csi.ControllerServiceCapability_RPC_Type) string {
		return strconv.FormatBool(d.Info.Controller[c])
	}
	return strings.NewReplacer(
		"DRIVER_NAME", d.Info.Name,
		"ATTACH_REQUIRED", announces(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME),
		"STORAGE_CAPACITY", announces(csi.ControllerServiceCapability_RPC_GET_CAPACITY),
		"VOLUME_EXPANSION", strconv.FormatBool(len(d.Info.Expansion) > 0),
	).Replace(text)
}

const period = 100 * time.Millisecond

// Cluster is an API server that has been prepared.
type Cluster struct {
	client kubernetes.Interface
}

// Config says what cluster to prepare.
type Config struct {
	// REST connects to its API server as an administrator.
	REST *rest.Config
	// SelfAttach gives nodes the right to create and delete VolumeAttachments.
	SelfAttach bool
}

// Apply writes the objects for the drivers, and waits until the API server serves the kinds of snapshots.
func Apply(ctx context.Context, c Config, drivers ...Driver) (*Cluster, error) {
	writer, err := apply.New(apply.Config{REST: c.REST, Manager: "devcluster"})
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(c.REST)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", c.REST.Host, err)
	}
	all, err1 := c.rights()
	definitions, err2 := Driver{}.embedded("snapshotcrds.yaml")
	errs := []error{err1, err2}
	for _, d := range drivers {
		object, err1 := d.csiDriver()
		classes, err2 := d.storageClasses()
		all, errs = append(append(all, object), classes...), append(errs, err1, err2)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if err := writer.Apply(ctx, append(all, definitions...)...); err != nil {
		return nil, err
	}
	for _, definition := range definitions {
		if err := waitEstablished(ctx, writer, definition); err != nil {
			return nil, err
		}
	}
	return &Cluster{client: client}, nil
}

// rights returns the rights of the components.
func (c Config) rights() ([]*unstructured.Unstructured, error) {
	all, err := Driver{}.embedded("rbac.yaml")
	if !c.SelfAttach {
		return all, err
	}
	nodes, err2 := Driver{}.embedded("selfattach.yaml")
	return append(all, nodes...), errors.Join(err, err2)
}

// waitEstablished waits until the API server serves the kind of a CustomResourceDefinition.
func waitEstablished(ctx context.Context, writer *apply.Client, definition *unstructured.Unstructured) error {
	resource, err := writer.Resource(definition)
	if err != nil {
		return err
	}
	var last error
	err = wait.PollUntilContextCancel(ctx, period, true, func(ctx context.Context) (bool, error) {
		var got *unstructured.Unstructured
		got, last = resource.Get(ctx, definition.GetName(), metav1.GetOptions{})
		return last == nil && established(got), nil
	})
	if err != nil {
		return fmt.Errorf("wait until the API server serves %s: %w", definition.GetName(), errors.Join(last, err))
	}
	return nil
}

func established(definition *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions") // there are none yet, or they are well-formed
	return slices.ContainsFunc(conditions, func(c any) bool {
		condition, ok := c.(map[string]any)
		return ok && condition["type"] == "Established" && condition["status"] == "True"
	})
}

// WaitNodes waits until every node is Ready and has the driver. The error of a context that ends first says what is missing.
func (c *Cluster) WaitNodes(ctx context.Context, names []string, driver string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(period + time.Duration(len(names))*period/20) // the lists of many nodes are long
	defer tick.Stop()
	for {
		missing, err := c.missing(ctx, names, driver)
		if err == nil && missing == "" {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for the nodes: %s: %w", missing, ctx.Err())
		}
	}
}

// missing says what the first node that is not complete lacks.
func (c *Cluster) missing(ctx context.Context, names []string, driver string) (string, error) {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "the nodes cannot be listed: " + err.Error(), err
	}
	csiNodes, err := c.client.StorageV1().CSINodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "the CSINodes cannot be listed: " + err.Error(), err
	}
	return Missing(names, driver, nodes.Items, csiNodes.Items), nil
}

// Missing says what the first incomplete node lacks, or "".
func Missing(names []string, driver string, nodes []corev1.Node, csiNodes []storagev1.CSINode) string {
	ready, registered := map[string]bool{}, map[string]bool{}
	for _, n := range nodes {
		for _, cond := range n.Status.Conditions {
			if cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue {
				ready[n.Name] = true
			}
		}
	}
	for _, n := range csiNodes {
		for _, d := range n.Spec.Drivers {
			if d.Name == driver {
				registered[n.Name] = true
			}
		}
	}
	for _, name := range names {
		switch {
		case !ready[name]:
			return fmt.Sprintf("node %s is not Ready (log of its csi-node-agent)", name)
		case !registered[name]:
			return fmt.Sprintf("driver %s is not registered on node %s (log of its csi-node-driver-registrar or csi-node-agent)", driver, name)
		}
	}
	return ""
}
