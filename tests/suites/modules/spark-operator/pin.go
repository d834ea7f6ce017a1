// Package pin names the release of the Spark operator whose definition of SparkApplications tests use.
package pin

import _ "github.com/kubeflow/spark-operator/v2"
